"""The common parts of this package's assignors: their base class, subscribers, and racks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.offsets import TopicPartition, from_numbers, numbers_by_topic
from spark_group_source.wire.metadata import Metadata


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Partition numbers by topic, with the methods that kafka-python's assignors call.

    ``racks`` are the racks of each partition's replicas. Comparisons ignore them: a broker that stops or starts
    changes them, and must not start a rebalance.
    """

    partitions: Mapping[str, frozenset[int]]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, metadata: Metadata) -> PartitionCounts:
        """Takes the topics that have partitions and no error."""
        partitions: dict[str, frozenset[int]] = {}
        racks: dict[TopicPartition, frozenset[str]] = {}
        for topic in metadata.topics.values():
            if topic.error or not topic.partitions:
                continue
            partitions[topic.name] = frozenset(topic.partitions)
            for number, replicas in topic.replicas.items():
                racks[TopicPartition(topic.name, number)] = metadata.racks(replicas)
        return cls(partitions, racks)

    def topics(self) -> set[str]:
        """All topics with known partitions."""
        return set(self.partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partition numbers, or ``None`` if the topic is unknown."""
        if topic not in self.partitions:
            return None
        return set(self.partitions[topic])


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member's subscription, as the leader gets it. A member that sends no ``generation`` has -1."""

    id: str
    topics: frozenset[str]
    user_data: bytes
    owned: Sequence[TopicPartition]
    generation: int
    instance_id: str | None
    rack: str | None

    @classmethod
    def of(cls, member: Any) -> Subscriber:
        """Converts kafka-python's JoinGroupResponseMember with its decoded subscription."""
        subscription = member.metadata
        owned = from_numbers((claim.topic, claim.partitions) for claim in subscription.owned_partitions or ())
        return cls(
            member.member_id,
            frozenset(subscription.topics or ()),
            bytes(subscription.user_data),
            tuple(owned),
            max(-1, subscription.generation_id),
            member.group_instance_id,
            subscription.rack_id or None,
        )

    @property
    def order(self) -> tuple[bool, bytes]:
        """Sorts members: static ones by their instance id, then the others by their member id."""
        if self.instance_id is None:
            return True, self.id.encode("utf-16-be", "surrogatepass")
        return False, self.instance_id.encode("utf-16-be", "surrogatepass")

    def near(self, replicas: Collection[str]) -> bool:
        """Whether one of these racks is the member's; true for a member without a rack."""
        return self.rack is None or self.rack in replicas


Topics = Mapping[str, Sequence[int]]
"""The partition numbers of each subscribed topic, sorted. Unknown topics are left out."""
PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of each partition's replicas. Partitions without known racks may be left out."""


class Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """An assignor that leads a group as the assignor of this name in Kafka's Java client does."""

    @abstractmethod
    def assign_partitions(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Returns each member's partitions by member id."""

    def assign(self, cluster: PartitionCounts, members: Iterable[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """Returns each member's assignment by member id; see kafka-python's AbstractPartitionAssignor."""
        subscribers = [Subscriber.of(member) for member in members]
        topics = _subscribed_topics(subscribers, cluster)
        assignments: dict[str, ConsumerProtocolAssignment] = {}
        for member, partitions in self.assign_partitions(topics, cluster.racks, subscribers).items():
            numbers = list(numbers_by_topic(partitions).items())
            assignments[member] = ConsumerProtocolAssignment(0, numbers, None)
        return assignments

    def metadata(self, topics: Collection[str]) -> ConsumerProtocolSubscription:
        """Returns the subscription, with user data for the leader's assignor."""
        return ConsumerProtocolSubscription(0, sorted(topics), self.user_data())

    def user_data(self) -> bytes | None:
        """Returns the subscription's user data, for the leader's assignor; ``None`` without any."""
        return None

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Called after each rebalance with this member's assignment."""


def _subscribed_topics(members: Iterable[Subscriber], cluster: PartitionCounts) -> Topics:
    subscribed: set[str] = set()
    for member in members:
        subscribed |= member.topics
    topics: dict[str, list[int]] = {}
    for topic in sorted(subscribed):
        numbers = cluster.partitions_for_topic(topic)
        if numbers:
            topics[topic] = sorted(numbers)
    return topics


def racks_matter(members: Iterable[Subscriber], partitions: Iterable[frozenset[str]]) -> bool:
    """Whether assignments depend on racks.

    They do not if no rack has both a member and a replica, or if all partitions have replicas in the same racks.
    """
    combinations = set(partitions)
    if len(combinations) < 2:
        return False
    replica_racks = frozenset[str]().union(*combinations)
    member_racks: set[str] = set()
    for member in members:
        if member.rack:
            member_racks.add(member.rack)
    return not member_racks.isdisjoint(replica_racks)
