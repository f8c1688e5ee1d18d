"""The assignor ``roundrobin``: assigns the partitions of all topics to the members in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from spark_group_source.group.classic.assignors.base import Assignor, PartitionRacks, Topics
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition


class RoundRobin(Assignor):
    """Eager. Skips a member that is not subscribed to the partition's topic."""

    name = "roundrobin"

    def assign_partitions(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, list[TopicPartition]]:
        """Each partition goes to the next member in turn that is subscribed to it."""
        assigned: dict[str, list[TopicPartition]] = {member.id: [] for member in members}
        subscribed = {member.id: frozenset(member.topics) for member in members}
        in_turn = cycle([member.id for member in sorted(members, key=lambda member: member.order)])
        for topic, numbers in sorted(topics.items()):
            for number in numbers:
                member = next(each for each in in_turn if topic in subscribed[each])
                assigned[member].append(TopicPartition(topic, number))
        return assigned
