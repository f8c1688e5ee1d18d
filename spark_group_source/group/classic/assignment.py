"""Subscriptions and assignments: what members tell the leader, and what the leader hands out.

What kafka-python's assignors do not say on the wire, this does: the subscription is sent as version 3 with the
partitions owned and their generation, as Kafka's own client does since 3.5.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.errors import OptionError
from spark_group_source.group.classic.assignors import is_cooperative, make
from spark_group_source.offsets import TopicPartition, numbers_by_topic
from spark_group_source.wire.metadata import Metadata

log = logging.getLogger(__name__)

_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0
_V0 = b"\0\0"


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the leader sees it; ``subscription`` is its encoded ConsumerProtocolSubscription."""

    member_id: str
    subscription: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Partition numbers by topic: the view of the cluster that assignors ask for, also a user's own.

    ``racks`` are those of each partition's replicas. They do not count in a comparison: they change whenever a broker
    stops or starts, and the next rebalance uses them soon enough.
    """

    partitions: Mapping[str, frozenset[int]]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, metadata: Metadata) -> PartitionCounts:
        """The topics that have partitions and no error."""
        known = [topic for topic in metadata.topics.values() if topic.partitions and not topic.error]
        return cls(
            {topic.name: frozenset(topic.partitions) for topic in known},
            {
                TopicPartition(topic.name, number): metadata.racks(replicas)
                for topic in known
                for number, replicas in topic.replicas.items()
            },
        )

    def topics(self) -> set[str]:
        """All topics with known partitions."""
        return set(self.partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partition numbers, or ``None`` where the topic is not known."""
        known = self.partitions.get(topic)
        return None if known is None else set(known)


class Assignors:
    """The assignors of one member, by the name the group knows them by, in its order of preference.

    Each remembers the last share and its generation: ``sticky`` tells them the leader, after all was given up. A user's
    own may remember what it likes. Caller: the member's thread.
    """

    def __init__(self, names: Collection[str], rack: str | None = None) -> None:
        self._names = tuple(names)
        self._rack = rack
        self._made = self._new()
        self.cooperative = is_cooperative(self._made.values())

    def _new(self) -> dict[str, Any]:
        return {each.name: each for each in map(make, self._names)}

    def subscriptions(
        self, topics: Collection[str], owned: Iterable[TopicPartition], generation: int
    ) -> dict[str, bytes]:
        """What this member sends the leader through JoinGroup, for whichever assignor the group chooses.

        Raises:
            OptionError: a user's assignor failed.
        """
        if generation < 0:
            # The membership was lost, and with it every claim to what it had: another member has it by now.
            self._made = self._new()
        held = [
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in numbers_by_topic(owned).items()
        ]
        return {name: self._subscription(name, topics, held, generation) for name in self._made}

    def _subscription(self, name: str, topics: Collection[str], held: list[Any], generation: int) -> bytes:
        with _users_code(name):
            encoded: bytes = ConsumerProtocolSubscription(
                version=_SUBSCRIPTION_VERSION,
                topics=sorted(topics),
                user_data=self._made[name].metadata(set(topics)).user_data or b"",
                owned_partitions=held,
                generation_id=generation,
                rack_id=self._rack,
            ).encode()
            return encoded

    def assign(self, name: str, members: Iterable[Member], layout: PartitionCounts) -> dict[str, bytes]:
        """Everybody's share, encoded, by member id. A member whose subscription cannot be read gets an empty one.

        Args:
            name: of the assignor that the group chose.
            members: all members of the generation.
            layout: partitions of all subscribed topics, from fresh metadata.

        Raises:
            OptionError: a user's assignor failed.
        """
        subscribed = []
        shares = {}
        for each in members:
            metadata = _decoded(each.subscription)
            if metadata is None:
                log.warning("member %s gets no partitions: its subscription cannot be read", each.member_id)
                shares[each.member_id] = ConsumerProtocolAssignment(_ASSIGNMENT_VERSION, [], b"")
                continue
            subscribed.append(
                JoinGroupResponse.JoinGroupResponseMember(
                    version=9, member_id=each.member_id, group_instance_id=each.group_instance_id, metadata=metadata
                )
            )
        with _users_code(name):
            shares |= self._made[name].assign(layout, subscribed)
            return {member_id: share.encode(version=_ASSIGNMENT_VERSION) for member_id, share in shares.items()}

    def assigned(self, name: str, share: Iterable[TopicPartition], generation: int) -> None:
        """This member has got its share by the assignor that the group chose.

        Raises:
            OptionError: a user's assignor failed.
        """
        with _users_code(name):
            told = ConsumerProtocolAssignment(_ASSIGNMENT_VERSION, list(numbers_by_topic(share).items()), b"")
            self._made[name].on_assignment(told, generation)


@contextmanager
def _users_code(assignor: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise OptionError(
            f"The assignor '{assignor}' of 'kafka.partition.assignment.strategy' failed: {error!r}.",
            "Correct it, or use another one.",
        ) from error


def subscribed_topics(members: Iterable[Member]) -> set[str]:
    """Topics that any member is subscribed to: the leader assigns those of the others too."""
    decoded = (_decoded(each.subscription) for each in members)
    return {topic for each in decoded if each is not None for topic in each.topics}


def _decoded(subscription: bytes) -> Any:
    """The subscription, ``None`` if it cannot be read. Topics and user data are written alike in all versions."""
    for written in (subscription, _V0 + subscription[len(_V0) :]):
        # kafka-python raises whatever its codecs meet in bytes that another client has sent.
        with suppress(Exception):
            metadata = ConsumerProtocolSubscription.decode(written)
            if None not in metadata.topics:
                # Members that send version 0 leave these out.
                metadata.owned_partitions = [each for each in metadata.owned_partitions or () if each.partitions]
                return metadata
    return None


def claimed_partitions(members: Iterable[Member]) -> set[TopicPartition]:
    """Partitions that members say they own: these exist, whatever one broker tells of their topics."""
    decoded = (_decoded(each.subscription) for each in members)
    claims = (claim for each in decoded if each is not None for claim in each.owned_partitions)
    return {TopicPartition(claim.topic, number) for claim in claims for number in claim.partitions}


def decode_assignment(encoded: bytes) -> frozenset[TopicPartition]:
    """This member's share; empty bytes are an empty share, as the broker sends them to a member left out."""
    if not encoded:
        return frozenset()
    decoded = ConsumerProtocolAssignment.decode(bytes(encoded))
    return frozenset(
        TopicPartition(topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions
    )
