"""Subscriptions and assignments: what members tell the leader, and what the leader hands out.

What kafka-python's assignors do not say on the wire, this does: the subscription is sent as version 3 with the
partitions owned and their generation, as Kafka's own client does since 3.5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.errors import OptionError
from spark_group_source.group.assignors import is_cooperative, make
from spark_group_source.offsets import TopicPartition, numbers_by_topic

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
    """Partition numbers by topic: the view of the cluster that assignors ask for, kafka-python's and a user's own."""

    partitions: Mapping[str, frozenset[int]]

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

    def assign(self, name: str, members: Iterable[Member], layout: Layout) -> dict[str, bytes]:
        """Everybody's share, encoded, by member id.

        Args:
            name: of the assignor that the group chose.
            members: all members of the generation.
            layout: partitions of all subscribed topics, from fresh metadata.

        Raises:
            OptionError: a user's assignor failed.
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
        with _users_code(name):
            shares = self._made[name].assign(layout, decoded)
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
    return {topic for each in members for topic in ConsumerProtocolSubscription.decode(each.subscription).topics}


def claimed_partitions(members: Iterable[Member]) -> set[TopicPartition]:
    """Partitions that members say they own: these exist, whatever one broker tells of their topics."""
    claims = (ConsumerProtocolSubscription.decode(each.subscription).owned_partitions or [] for each in members)
    return {TopicPartition(each.topic, number) for claim in claims for each in claim for number in each.partitions}


def decode_assignment(encoded: bytes) -> frozenset[TopicPartition]:
    """This member's share; empty bytes are an empty share, as the broker sends them to a member left out."""
    if not encoded:
        return frozenset()
    decoded = ConsumerProtocolAssignment.decode(bytes(encoded))
    return frozenset(
        TopicPartition(topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions
    )
