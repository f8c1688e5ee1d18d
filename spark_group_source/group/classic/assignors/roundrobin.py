"""The assignor ``roundrobin``: all partitions of all topics are dealt out one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from spark_group_source.group.classic.assignors.base import Assignor, PartitionRacks, Topics
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition


class RoundRobin(Assignor):
    """Eager. A member that is not subscribed to the partition's topic is passed over."""

    name = "roundrobin"

    def share(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, list[TopicPartition]]:
        """Each partition goes to the next member in turn that is subscribed to it."""
        shares: dict[str, list[TopicPartition]] = {each.id: [] for each in members}
        subscribed = {each.id: frozenset(each.topics) for each in members}
        turn = cycle([each.id for each in sorted(members, key=lambda each: each.order)])
        for topic, numbers in sorted(topics.items()):
            for number in numbers:
                member = next(each for each in turn if topic in subscribed[each])
                shares[member].append(TopicPartition(topic, number))
        return shares
