"""The base class of the assignors of Kafka's Java client."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.group.classic.assignors.java_order import hash_order, text_hash
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition, numbers_by_topic

if TYPE_CHECKING:
    from spark_group_source.group.classic.assignment import PartitionCounts

Topics = Mapping[str, Sequence[int]]
"""The partition numbers of each subscribed topic, sorted. Unknown topics are left out."""
PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of each partition's replicas. Partitions without known racks may be left out."""


class Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """An assignor with the same result as the assignor of this name in Kafka's Java client."""

    @abstractmethod
    def assign_partitions(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Returns each member's partitions by member id. ``members`` are in Java's iteration order."""

    def assign(self, cluster: PartitionCounts, members: Iterable[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """Returns each member's assignment by member id; see kafka-python's AbstractPartitionAssignor."""
        subscribers = hash_order(map(Subscriber.of, members), lambda member: text_hash(member.id))
        numbers_of = {
            topic: sorted(cluster.partitions_for_topic(topic) or ())
            for topic in sorted({topic for member in subscribers for topic in member.topics})
        }
        topics = {topic: numbers for topic, numbers in numbers_of.items() if numbers}
        return {
            member: ConsumerProtocolAssignment(0, list(numbers_by_topic(partitions).items()), b"")
            for member, partitions in self.assign_partitions(topics, cluster.racks, subscribers).items()
        }

    def metadata(self, topics: Collection[str]) -> ConsumerProtocolSubscription:
        """Returns the subscription, with user data for the leader's assignor."""
        return ConsumerProtocolSubscription(0, sorted(topics), self.user_data())

    def user_data(self) -> bytes:
        """Returns the subscription's user data, for the leader's assignor."""
        return b""

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Called after each rebalance with this member's assignment."""
