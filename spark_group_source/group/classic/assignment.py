"""Encodes the subscriptions that members send to the leader, and the assignments that the leader returns.

Subscriptions have version 3 of the consumer protocol, with owned partitions and their generation, as in Kafka's client
since 3.5; kafka-python's assignors send neither. Assignments have version 0, which every client reads; later versions
add no field.

If an assignor has no user data, null is sent, as by Kafka's client, even if a user's assignor returns empty bytes, as
kafka-python's assignors do. With ``sticky``, sarama fails on empty bytes, and repeats the user data of its assignment
in each later subscription. The assignors of this package receive empty bytes instead of null.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.errors import OptionError, ProtocolError
from spark_group_source.group.assignors import create_assignor, is_cooperative
from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.offsets import Partitions, TopicPartition, from_numbers, numbers_by_topic
from spark_group_source.text import printable

log = logging.getLogger(__name__)

_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0
_V0 = b"\0\0"


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member in a JoinGroup response; ``subscription`` is its encoded ConsumerProtocolSubscription."""

    member_id: str
    subscription: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's assignment as the leader sent it, with the ``user_data`` of the leader's assignor."""

    partitions: Partitions = frozenset()
    user_data: bytes = b""


class Assignors:
    """The assignors of one member, by the name that members advertise, in order of preference.

    Each remembers the last assignment and its generation: ``sticky`` sends them to the leader, because an eager member
    owns nothing when it joins. Caller: the member's thread.
    """

    def __init__(self, names: Collection[str], rack: str | None = None) -> None:
        self._names = tuple(names)
        self._rack = rack
        self._by_name = self._create()
        self.cooperative = is_cooperative(self._by_name.values())

    def _create(self) -> dict[str, Any]:
        return {assignor.name: assignor for assignor in map(create_assignor, self._names)}

    def subscriptions(
        self, topics: Collection[str], owned: Iterable[TopicPartition], generation: int
    ) -> dict[str, bytes]:
        """Returns this member's encoded subscription for each assignor: the group chooses one of them.

        Raises:
            OptionError: a user's assignor failed.
        """
        if generation < 0:
            # All owned partitions were lost: assignors must forget them, because other members may own them by now.
            self._by_name = self._create()
        owned_partitions = [
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in numbers_by_topic(owned).items()
        ]
        return {name: self._subscription(name, topics, owned_partitions, generation) for name in self._by_name}

    def _subscription(self, name: str, topics: Collection[str], owned_partitions: list[Any], generation: int) -> bytes:
        with _named_in_errors(name):
            encoded: bytes = ConsumerProtocolSubscription(
                version=_SUBSCRIPTION_VERSION,
                topics=sorted(topics),
                user_data=self._by_name[name].metadata(set(topics)).user_data or None,
                owned_partitions=owned_partitions,
                generation_id=generation,
                rack_id=self._rack,
            ).encode()
            return encoded

    def assign(self, name: str, members: Iterable[JoinedMember], partition_counts: PartitionCounts) -> dict[str, bytes]:
        """Returns every member's assignment, encoded, by member id; empty for an unreadable subscription.

        Args:
            name: the assignor that the group chose.
            members: all members of the generation.
            partition_counts: partitions of all subscribed topics, from new metadata.

        Raises:
            OptionError: a user's assignor failed.
        """
        subscribed = []
        assignments = {}
        for member in members:
            metadata = _decode_subscription(member.subscription)
            if metadata is None:
                log.warning(
                    "member %s gets no partitions: its subscription cannot be read", printable(member.member_id)
                )
                assignments[member.member_id] = ConsumerProtocolAssignment(_ASSIGNMENT_VERSION, [], None)
                continue
            subscribed.append(
                JoinGroupResponse.JoinGroupResponseMember(
                    version=9, member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=metadata
                )
            )
        with _named_in_errors(name):
            assignments |= self._by_name[name].assign(partition_counts, subscribed)
            return {member_id: _encode(each) for member_id, each in assignments.items()}

    def assigned(
        self, name: str, partitions: Iterable[TopicPartition], generation: int, user_data: bytes = b""
    ) -> None:
        """Passes this member's assignment, with the leader's user data, to the assignor that the group chose.

        Raises:
            OptionError: a user's assignor failed.
        """
        with _named_in_errors(name):
            assignment = ConsumerProtocolAssignment(
                _ASSIGNMENT_VERSION, list(numbers_by_topic(partitions).items()), user_data
            )
            self._by_name[name].on_assignment(assignment, generation)


def _encode(assignment: Any) -> bytes:
    encoded: bytes = ConsumerProtocolAssignment(
        _ASSIGNMENT_VERSION, assignment.assigned_partitions, assignment.user_data or None
    ).encode(version=_ASSIGNMENT_VERSION)
    return encoded


@contextmanager
def _named_in_errors(assignor: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise OptionError(
            f"The assignor '{assignor}' of 'kafka.partition.assignment.strategy' failed: {error!r}.",
            "Correct it, or use another assignor.",
        ) from error


def subscribed_topics(members: Iterable[JoinedMember]) -> set[str]:
    """All topics to which any member is subscribed."""
    topics: set[str] = set()
    for subscription in _readable_subscriptions(members):
        topics.update(subscription.topics)
    return topics


def _readable_subscriptions(members: Iterable[JoinedMember]) -> Iterator[Any]:
    for member in members:
        subscription = _decode_subscription(member.subscription)
        if subscription is not None:
            yield subscription


def _decode_subscription(encoded: bytes) -> Any:
    """Decodes a subscription. If that fails, decodes it as version 0, with which all versions begin; ``None`` if that
    fails too."""
    for data in (encoded, _V0 + encoded[len(_V0) :]):
        # kafka-python raises any error of its codecs for unexpected bytes of another client.
        with suppress(Exception):
            subscription = ConsumerProtocolSubscription.decode(data)
            if None in subscription.topics:
                continue
            owned = []
            for topic in subscription.owned_partitions or ():  # version 0 has none
                if topic.partitions:
                    owned.append(topic)
            subscription.owned_partitions = owned
            if subscription.user_data is None:
                subscription.user_data = b""
            return subscription
    return None


def claimed_partitions(members: Iterable[JoinedMember]) -> set[TopicPartition]:
    """Partitions that members claim to own: they exist, even if one broker does not know them."""
    claimed: set[TopicPartition] = set()
    for subscription in _readable_subscriptions(members):
        claimed.update(from_numbers((claim.topic, claim.partitions) for claim in subscription.owned_partitions))
    return claimed


def decode_assignment(encoded: bytes) -> Partitions:
    """The partitions of an assignment; see :func:`read_assignment`."""
    return read_assignment(encoded).partitions


def read_assignment(encoded: bytes) -> Assignment:
    """Decodes an assignment. Empty bytes, which the broker sends to a member without an entry, are an empty assignment.

    Raises:
        ProtocolError: the bytes are no assignment. Any client may lead a group.
    """
    if not encoded:
        return Assignment()
    try:
        decoded = ConsumerProtocolAssignment.decode(bytes(encoded))
        partitions = from_numbers((topic.topic, topic.partitions) for topic in decoded.assigned_partitions)
        return Assignment(frozenset(partitions), bytes(decoded.user_data or b""))
    except Exception as error:  # kafka-python raises any error of its codecs
        raise ProtocolError(f"The group's leader sent an assignment that cannot be decoded: {error!r}.") from error
