"""The assignors of a fake coordinator: ``uniform`` and ``range`` of Kafka 4, without racks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from uuid import UUID

IdPartition = tuple[UUID, int]
Partitions = frozenset[IdPartition]

Subscriptions = Mapping[str, Mapping[str, tuple[UUID, int]]]
"""By member id, in order: the topics that it subscribes to, with their ids and numbers of partitions."""

UNIFORM, RANGE = "uniform", "range"


def uniform(subscriptions: Subscriptions, former: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Gives each member as many partitions as possible of its former ones, and all members equally many."""
    may_have = {
        member: frozenset((topic_id, number) for topic_id, count in topics.values() for number in range(count))
        for member, topics in subscriptions.items()
    }
    every = sorted(frozenset[IdPartition]().union(*may_have.values()))
    target: dict[str, set[IdPartition]] = {member: set() for member in subscriptions}
    least, more = divmod(len(every), len(target)) if target else (0, 0)
    for member in sorted(target, key=lambda each: -len(former.get(each, ()))):
        kept = sorted(former.get(member, frozenset()) & may_have[member])
        quota = least + (more > 0 and len(kept) > least)
        more -= quota > least
        target[member].update(kept[:quota])
    given = set[IdPartition]().union(*target.values())
    for partition in every:
        if partition not in given:
            fewest = min((each for each in target if partition in may_have[each]), key=lambda each: len(target[each]))
            target[fewest].add(partition)
    return {member: frozenset(partitions) for member, partitions in target.items()}


def range_(subscriptions: Subscriptions, former: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Gives each member a range of each topic's partitions; ``former`` assignments do not count."""
    members: dict[tuple[UUID, int], list[str]] = defaultdict(list)
    for member, topics in subscriptions.items():
        for topic in topics.values():
            members[topic].append(member)
    target: dict[str, set[IdPartition]] = {member: set() for member in subscriptions}
    for (topic_id, count), subscribed in members.items():
        least, more = divmod(count, len(subscribed))
        start = 0
        for place, member in enumerate(subscribed):
            end = start + least + (place < more)
            target[member].update((topic_id, number) for number in range(start, end))
            start = end
    return {member: frozenset(partitions) for member, partitions in target.items()}


ASSIGNORS = {UNIFORM: uniform, RANGE: range_}
