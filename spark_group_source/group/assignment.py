"""Subscriptions and assignments: what members tell the leader, and what the leader hands out.

The assignors are kafka-python's. What they do not say on the wire, this does: the subscription is sent as version 3
with the partitions owned and their generation, as Kafka's own client does since 3.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.offsets import TopicPartition

_ASSIGNORS = {
    each.name: each for each in (CooperativeStickyAssignor, RangePartitionAssignor, RoundRobinPartitionAssignor)
}
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the leader sees it; ``subscription`` is its encoded ConsumerProtocolSubscription."""

    member_id: str
    subscription: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Partition numbers by topic: the view of the cluster that kafka-python's assignors ask for."""

    partitions: Mapping[str, frozenset[int]]

    def topics(self) -> set[str]:
        """All topics with known partitions."""
        return set(self.partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partition numbers, or ``None`` where the topic is not known."""
        known = self.partitions.get(topic)
        return None if known is None else set(known)


def is_cooperative(assignors: Collection[str]) -> bool:
    """Whether members keep their partitions across a rebalance."""
    return CooperativeStickyAssignor.name in assignors


def subscription(topics: Iterable[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """What this member sends the leader through JoinGroup."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in sorted(owned):
        by_topic[tp.topic].append(tp.partition)
    held = [ConsumerProtocolSubscription.TopicPartition(topic=t, partitions=p) for t, p in by_topic.items()]
    encoded: bytes = ConsumerProtocolSubscription(
        version=_SUBSCRIPTION_VERSION,
        topics=sorted(topics),
        user_data=b"",
        owned_partitions=held,
        generation_id=generation,
        rack_id=None,
    ).encode()
    return encoded


def subscribed_topics(members: Iterable[Member]) -> set[str]:
    """Topics that any member is subscribed to: the leader assigns those of the others too."""
    return {topic for each in members for topic in ConsumerProtocolSubscription.decode(each.subscription).topics}


def assign(assignor: str, members: Iterable[Member], layout: Layout) -> dict[str, bytes]:
    """Everybody's share, encoded, by member id.

    Args:
        assignor: the name the group chose.
        members: all members of the generation.
        layout: partitions of all subscribed topics, from fresh metadata.
    """
    decoded = []
    for each in members:
        metadata = ConsumerProtocolSubscription.decode(each.subscription)
        # Members that send version 0 or 1 leave these out, and the assignors ask for them.
        metadata.owned_partitions = metadata.owned_partitions or []
        decoded.append(
            JoinGroupResponse.JoinGroupResponseMember(
                version=9, member_id=each.member_id, group_instance_id=each.group_instance_id, metadata=metadata
            )
        )
    # A new assignor each time: state of an earlier generation must not let a member claim what it lost.
    shares = _ASSIGNORS[assignor]().assign(layout, decoded)
    return {member_id: share.encode(version=_ASSIGNMENT_VERSION) for member_id, share in shares.items()}


def decode_assignment(encoded: bytes) -> frozenset[TopicPartition]:
    """This member's share; empty bytes are an empty share, as the broker sends them to a member left out."""
    if not encoded:
        return frozenset()
    decoded = ConsumerProtocolAssignment.decode(bytes(encoded))
    return frozenset(
        TopicPartition(topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions
    )
