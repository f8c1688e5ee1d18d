"""The assignors ``range`` and ``roundrobin``, with the results of Kafka's Java client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice

from spark_group_source.group.assignors.base import Assignor, PartitionRacks, Subscriber, Topics, racks_matter
from spark_group_source.offsets import TopicPartition


class RoundRobin(Assignor):
    """Eager. Skips a member that is not subscribed to the partition's topic."""

    name = "roundrobin"

    def assign_partitions(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, list[TopicPartition]]:
        """Each partition goes to the next member in turn that is subscribed to it."""
        assigned: dict[str, list[TopicPartition]] = {member.id: [] for member in members}
        in_turn = cycle(sorted(members, key=lambda member: member.order))
        for topic, numbers in sorted(topics.items()):
            for number in numbers:
                member = next(in_turn)
                while topic not in member.topics:
                    member = next(in_turn)
                assigned[member.id].append(TopicPartition(topic, number))
        return assigned


class Range(Assignor):
    """Eager. Equal partition numbers of topics with equal sizes and members go to one member."""

    name = "range"

    def assign_partitions(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, list[TopicPartition]]:
        """Assigns partitions to members near a replica first, within the sizes of the ranges, then the others."""
        ordered = sorted(members, key=lambda member: member.order)
        ranges = []
        for topic, numbers in topics.items():
            ranges.append(_TopicRanges(topic, numbers, _subscribers(topic, ordered), racks))
        if any(topic.racks_matter for topic in ranges):
            _match_racks(ranges)
        assigned: dict[str, list[TopicPartition]] = {member.id: [] for member in members}
        for topic_ranges in ranges:
            topic_ranges.assign_rest(nearby=False)
            for member_id, tp in topic_ranges.shares():
                assigned[member_id].append(tp)
        return assigned


def _subscribers(topic: str, members: Iterable[Subscriber]) -> list[Subscriber]:
    found = []
    for member in members:
        if topic in member.topics:
            found.append(member)
    return found


class _TopicRanges:
    """The members of one topic, and the partitions assigned to them so far."""

    def __init__(self, name: str, numbers: Sequence[int], members: list[Subscriber], racks: PartitionRacks) -> None:
        self.name = name
        self.members = members
        self.numbers = numbers
        self.assigned: dict[str, list[int]] = {member.id: [] for member in members}
        self._left = dict.fromkeys(numbers)
        self._size, self._larger = divmod(len(numbers), len(members))
        self.racks = {number: racks.get(TopicPartition(name, number), frozenset()) for number in numbers}
        self.racks_matter = racks_matter(members, self.racks.values())

    def room(self, member: Subscriber) -> int:
        """How many partitions this member may still get: the first members to need it have a range larger by one."""
        size = self._size
        if self._larger > 0:
            size += 1
        return max(0, size - len(self.assigned[member.id]))

    def assign(self, member: Subscriber, numbers: list[int]) -> None:
        """Assigns partitions to a member."""
        assigned = self.assigned[member.id]
        assigned += numbers
        if len(assigned) > self._size:
            self._larger -= 1
        for number in numbers:
            del self._left[number]

    def assign_rest(self, nearby: bool) -> None:
        """Assigns each member as many partitions as it has room for; with ``nearby``, only those with a replica in its
        rack."""
        for member in self.members:
            candidates: Iterable[int] = self._left
            if nearby:
                candidates = self._left_near(member)
            numbers = list(islice(candidates, self.room(member)))
            if numbers:
                self.assign(member, numbers)

    def _left_near(self, member: Subscriber) -> Iterator[int]:
        for number in self._left:
            if member.near(self.racks[number]):
                yield number

    def shares(self) -> Iterator[tuple[str, TopicPartition]]:
        """Each assigned partition, after the id of its member."""
        for member_id, numbers in self.assigned.items():
            for number in numbers:
                yield member_id, TopicPartition(self.name, number)


def _match_racks(topics: list[_TopicRanges]) -> None:
    co_partitioned: dict[tuple[frozenset[str], int], list[_TopicRanges]] = {}
    for topic in topics:
        co_partitioned.setdefault((frozenset(topic.assigned), len(topic.numbers)), []).append(topic)
    for group in co_partitioned.values():
        if len(group) > 1:
            _match_co_partitioned(group)
        elif group[0].racks_matter:
            group[0].assign_rest(nearby=True)


def _match_co_partitioned(topics: list[_TopicRanges]) -> None:
    members = topics[0].members
    if not any(member.rack for member in members):
        return
    for numbers in zip(*(topic.numbers for topic in topics), strict=True):
        partitions = list(zip(topics, numbers, strict=True))
        for member in members:
            if _fits(member, partitions):
                for topic, number in partitions:
                    topic.assign(member, [number])
                break


def _fits(member: Subscriber, partitions: Iterable[tuple[_TopicRanges, int]]) -> bool:
    """Whether a member has room for one of these partitions in each topic, and is near all of them."""
    for topic, number in partitions:
        if not topic.room(member):
            return False
        if not member.near(topic.racks[number]):
            return False
    return True
