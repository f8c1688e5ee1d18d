"""What the assignors of Kafka's own client have in common."""

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
"""The partition numbers of each subscribed topic, sorted. Topics that are not known are left out."""
PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of each partition's replicas. Partitions without known racks may be left out."""


class Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """An assignor whose result is that of the assignor of the same name in Kafka's Java client."""

    @abstractmethod
    def share(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Each member's partitions by member id. ``members`` are in the order in which Java iterates over them."""

    def assign(self, cluster: PartitionCounts, members: Iterable[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """Each member's encodable assignment by member id; see kafka-python's AbstractPartitionAssignor."""
        subscribers = hash_order(map(Subscriber.of, members), lambda each: text_hash(each.id))
        known = {
            topic: sorted(cluster.partitions_for_topic(topic) or ())
            for topic in sorted({topic for each in subscribers for topic in each.topics})
        }
        topics = {topic: numbers for topic, numbers in known.items() if numbers}
        return {
            member: ConsumerProtocolAssignment(0, list(numbers_by_topic(partitions).items()), b"")
            for member, partitions in self.share(topics, cluster.racks, subscribers).items()
        }

    def metadata(self, topics: Collection[str]) -> ConsumerProtocolSubscription:
        """The subscription; its user data is what the leader's assignor is told."""
        return ConsumerProtocolSubscription(0, sorted(topics), self.user_data())

    def user_data(self) -> bytes:
        """What the leader's assignor is told beside the subscription."""
        return b""

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Called after each rebalance with this member's assignment."""
