"""The assignor ``range``: each topic on its own is cut into as many ranges as it has members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from spark_group_source.group.classic.assignors.base import Assignor, PartitionRacks, Topics
from spark_group_source.group.classic.assignors.racks import matter
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition


class Range(Assignor):
    """Eager. Partitions of one number go to one member, if their topics have equal sizes and members."""

    name = "range"

    def share(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, list[TopicPartition]]:
        """Gives partitions to members near a replica first, within the sizes of the ranges, and then the others."""
        ordered = sorted(members, key=lambda each: each.order)
        ranges = [
            _Topic(topic, numbers, [each for each in ordered if topic in each.topics], racks)
            for topic, numbers in topics.items()
        ]
        if any(each.racks_matter for each in ranges):
            _match_racks(ranges)
        for each in ranges:
            each.fill(nearby=False)
        return {
            member.id: [
                TopicPartition(each.name, number) for each in ranges for number in each.given.get(member.id, ())
            ]
            for member in members
        }


class _Topic:
    """The members of one topic and the partitions that they have got so far."""

    def __init__(self, name: str, numbers: Sequence[int], members: list[Subscriber], racks: PartitionRacks) -> None:
        self.name = name
        self.members = members
        self.numbers = numbers
        self.given: dict[str, list[int]] = {each.id: [] for each in members}
        self._left = dict.fromkeys(numbers)
        self._size, self._larger = divmod(len(numbers), len(members))
        self._racks = {number: racks.get(TopicPartition(name, number), frozenset()) for number in numbers}
        self.racks_matter = matter(members, self._racks.values())

    def room(self, member: Subscriber) -> int:
        """How many partitions this member may still get: some ranges are larger by one, whoever takes them first."""
        return max(0, self._size + (self._larger > 0) - len(self.given[member.id]))

    def near(self, member: Subscriber, number: int) -> bool:
        """Whether a replica is in the member's rack. A member without a rack is near everything."""
        return member.rack is None or member.rack in self._racks[number]

    def give(self, member: Subscriber, numbers: list[int]) -> None:
        """Gives partitions to a member."""
        given = self.given[member.id]
        given += numbers
        self._larger -= len(given) > self._size
        for number in numbers:
            del self._left[number]

    def fill(self, nearby: bool) -> None:
        """Gives each member what it has room for, of all partitions or only of those nearby."""
        for member in self.members:
            fitting = (number for number in self._left if not nearby or self.near(member, number))
            if taken := list(islice(fitting, self.room(member))):
                self.give(member, taken)


def _match_racks(topics: list[_Topic]) -> None:
    alike: dict[tuple[frozenset[str], int], list[_Topic]] = {}
    for each in topics:
        alike.setdefault((frozenset(each.given), len(each.numbers)), []).append(each)
    for together in alike.values():
        if len(together) > 1:
            _match_together(together)
        elif together[0].racks_matter:
            together[0].fill(nearby=True)


def _match_together(topics: list[_Topic]) -> None:
    members = topics[0].members
    if not any(each.rack for each in members):
        return
    for numbers in zip(*(each.numbers for each in topics), strict=True):
        places = list(zip(topics, numbers, strict=True))
        for member in members:
            if all(topic.room(member) and topic.near(member, number) for topic, number in places):
                for topic, number in places:
                    topic.give(member, [number])
                break
