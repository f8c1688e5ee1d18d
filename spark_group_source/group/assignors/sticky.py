"""The assignors ``sticky`` and ``cooperative-sticky``: as balanced as those of Kafka's Java client, and as sticky."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from spark_group_source.group.assignors.base import Assignor, PartitionRacks, Subscriber, Topics, racks_matter
from spark_group_source.offsets import TopicPartition, from_numbers, numbers_by_topic

Shares = Mapping[str, set[TopicPartition]]
"""Each member's partitions, by member id."""
Claim = tuple[Iterable[TopicPartition], int]
"""The partitions that a member claims, and the generation that assigned them."""
Receivers = tuple[tuple[str, ...], tuple[str, ...]]
"""The members that should get a partition, because it has a replica in their rack, and all members that may get it."""

_NO_GENERATION = -1

_KAFKA_PYTHON = b"\0\1"
"""kafka-python writes a version first. Java's encoding would begin with these bytes only for 65,536 topics or more."""


def encode(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """Encodes the partitions that were assigned in this generation."""
    last = StickyAssignorUserData(list(numbers_by_topic(partitions).items()), generation)
    encoded: bytes = last.encode(header=False)
    return encoded


def decode(user_data: bytes) -> Claim:
    """Decodes the partitions and their generation, from any client.

    The generation is -1 for clients before Kafka 2.3, which send none. Unreadable bytes give no partitions.
    """
    for version in (1, 0):
        with suppress(Exception):  # kafka-python raises any error of its codecs
            last = StickyAssignorUserData.decode(user_data, version, header=user_data.startswith(_KAFKA_PYTHON))
            return from_numbers(last.previous_assignment), last.generation
    return [], -1


class Balance:
    """The assignment of one rebalance.

    Members keep the partitions that they claim, except those without a replica in their rack. The other partitions go
    to the members with the fewest. Then partitions move, one at a time, to a member that has at least two fewer, until
    there is no such member.

    Args:
        topics: the partition numbers of each topic.
        racks: the racks of each partition's replicas.
        members: all members.
        claims: by member id. If several members claim a partition, the claim of the latest generation applies.
    """

    def __init__(
        self, topics: Topics, racks: PartitionRacks, members: Iterable[Subscriber], claims: Mapping[str, Claim]
    ) -> None:
        members = sorted(members, key=lambda member: member.id)
        self._former = _former_owners(members, claims)
        self._size = {member.id: 0 for member in members}
        self._owned: dict[Receivers, dict[str, list[TopicPartition]]] = {}
        """Partitions by possible receivers and owner; the last ones move first."""
        free = []
        for tp, receivers in sorted(_receivers(topics, racks, members), key=lambda each: len(each[1][0])):
            if self._former.get(tp) in receivers[0]:
                self._give(tp, receivers, self._former[tp])
            else:
                free.append((tp, receivers))
        for tp, receivers in free:
            self._give(tp, receivers, min(receivers[0], key=self._size.__getitem__))
        while self._move():
            pass

    def shares(self) -> Shares:
        """Each member's partitions, by member id."""
        shares: dict[str, set[TopicPartition]] = {member: set() for member in self._size}
        for owners in self._owned.values():
            for member, owned in owners.items():
                shares[member].update(owned)
        return shares

    def _give(self, tp: TopicPartition, receivers: Receivers, member: str) -> None:
        self._owned.setdefault(receivers, {}).setdefault(member, []).append(tp)
        self._size[member] += 1

    def _move(self) -> bool:
        """Makes the best move, if any is left.

        Partitions that are new to their owner move first, then those of the largest member; they move to members near a
        replica, then to the smallest member.
        """
        size = self._size
        moves = []
        for receivers, owners in self._owned.items():
            near, every = receivers
            nearest, smallest = min(near, key=size.__getitem__), min(every, key=size.__getitem__)
            for giver, owned in owners.items():
                if not owned:
                    continue
                receiver, far = nearest, False
                if size[giver] - size[nearest] < 2:
                    receiver, far = smallest, True
                if size[giver] - size[receiver] > 1:
                    claimed = self._former.get(owned[-1]) == giver
                    moves.append((claimed, -size[giver], far, size[receiver], giver, receiver, receivers))
        if not moves:
            return False
        *_, giver, receiver, receivers = min(moves)
        tp = self._owned[receivers][giver].pop()
        former = self._former.get(tp)
        if former is not None and size[giver] - size[former] > 1:
            receiver = former
        size[giver] -= 1
        self._give(tp, receivers, receiver)
        return True


def _former_owners(members: Iterable[Subscriber], claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """The former owner of each partition, if it claims the partition and is still subscribed to the topic."""
    owners = {}
    for member in sorted(members, key=lambda member: claims[member.id][1]):
        claimed, _ = claims[member.id]
        for tp in claimed:
            if tp.topic in member.topics:
                owners[tp] = member.id
    return owners


def _receivers(
    topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
) -> list[tuple[TopicPartition, Receivers]]:
    partitions = from_numbers(topics.items())
    matter = racks_matter(members, (racks.get(tp, frozenset()) for tp in partitions))

    @cache
    def receivers(topic: str, replicas: frozenset[str]) -> Receivers:
        near, every = [], []
        for member in members:
            if topic not in member.topics:
                continue
            every.append(member.id)
            if member.near(replicas):
                near.append(member.id)
        if not matter or not near:
            near = every
        return tuple(near), tuple(every)

    return [(tp, receivers(tp.topic, racks.get(tp, frozenset()))) for tp in partitions]


class Sticky(Assignor):
    """Eager: members revoke all partitions before each rebalance, and get most of them back."""

    name = "sticky"

    def __init__(self) -> None:
        self._user_data: bytes | None = None
        self._led: Shares = {}

    def assign_partitions(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Shares:
        """Members claim their last assignment in the user data, because eager members own nothing when they join."""
        self._led = Balance(topics, racks, members, {member.id: self._claim(member) for member in members}).shares()
        return self._led

    def _claim(self, member: Subscriber) -> Claim:
        """The claim of a member. Without user data, it is the last assignment that this leader made for the member.

        sarama claims only the partitions in the leader's user data, and Kafka's client sends no user data with
        assignments, because a coordinator does not convert a group with user data to KIP-848. A claim in user data
        takes precedence.
        """
        if member.user_data:
            return decode(member.user_data)
        return self._led.get(member.id, ()), _NO_GENERATION

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Remembers the assignment for the next rebalance."""
        self._user_data = encode(assignment.partitions(), generation)

    def user_data(self) -> bytes | None:
        """The last assignment, encoded; ``None`` before the first."""
        return self._user_data


class CooperativeSticky(Assignor):
    """Members keep their partitions in a rebalance. A partition that moves is assigned in the next rebalance."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = -1

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Also eager, as in Kafka's client, for members that also have an eager assignor."""
        return [RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER]

    def assign_partitions(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Shares:
        """Leaves out the partitions that another member must revoke first."""
        claims = {member.id: (member.owned, _generation(member)) for member in members}
        shares = Balance(topics, racks, members, claims).shares()
        owned: set[TopicPartition] = set()
        for member in members:
            owned.update(member.owned)
        kept: dict[str, set[TopicPartition]] = {}
        for member in members:
            owned_by_others = owned.difference(member.owned)
            kept[member.id] = shares[member.id] - owned_by_others
        return kept

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Remembers the generation for the next rebalance."""
        self._generation = generation

    def user_data(self) -> bytes:
        """The generation, for leaders that read it from the user data only."""
        return struct.pack(">i", self._generation)


def _generation(member: Subscriber) -> int:
    """The generation in which a member got its partitions. Clients before Kafka 3.4 send it in the user data only."""
    if member.generation >= 0:
        return member.generation
    if len(member.user_data) < 4:
        return member.generation
    generation: int = struct.unpack_from(">i", member.user_data)[0]
    return generation
