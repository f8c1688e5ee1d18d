"""How each assignor divides topics among members that all subscribe to all of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_group_source.offsets import TopicPartition

Share = frozenset[TopicPartition]
"""The partitions of one member."""

STICKY = ("sticky", "cooperative-sticky", "uniform")
"""Assignors that may divide in any even way, and move no more than they must."""


def divided(assignor: str, shares: Collection[Share], topics: Mapping[str, int]) -> bool:
    """Whether the members have these topics, given with their numbers of partitions, as the assignor divides them.

    Which member has which share is not judged: that goes by member ids, which chance makes.
    """
    owned = [tp for share in shares for tp in share]
    everything = {TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)}
    if len(owned) != len(everything) or set(owned) != everything:
        return False
    if assignor == "range":
        return sorted(map(sorted, shares)) == sorted(map(sorted, _ranges(topics, len(shares))))
    if assignor == "roundrobin":
        return sorted(map(sorted, shares)) == sorted(map(sorted, _dealt(topics, len(shares))))
    sizes = {len(share) for share in shares}
    return max(sizes) - min(sizes) <= 1


def swapped(before: Share, after: Share) -> bool:
    """Whether a member that stayed gave partitions up and got others, which a sticky assignor avoids."""
    return bool(before - after) and bool(after - before)


def _ranges(topics: Mapping[str, int], members: int) -> list[Share]:
    """Each topic in blocks, of which the first ones are larger by one."""
    shares: list[set[TopicPartition]] = [set() for _ in range(members)]
    for topic, count in topics.items():
        size, larger = divmod(count, members)
        at = 0
        for member, share in enumerate(shares):
            end = at + size
            if member < larger:
                end += 1
            share.update(TopicPartition(topic, number) for number in range(at, end))
            at = end
    return [frozenset(share) for share in shares]


def _dealt(topics: Mapping[str, int], members: int) -> list[Share]:
    """All partitions in the order of their topics, dealt like cards."""
    cards = [TopicPartition(topic, number) for topic in sorted(topics) for number in range(topics[topic])]
    return [frozenset(cards[member::members]) for member in range(members)]
