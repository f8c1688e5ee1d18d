"""The assignors ``sticky`` and ``cooperative-sticky``: balanced, and members keep their partitions if possible."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from spark_group_source.group.classic.assignors import user_data
from spark_group_source.group.classic.assignors.base import Assignor, PartitionRacks, Topics
from spark_group_source.group.classic.assignors.claims import Claim, Claims
from spark_group_source.group.classic.assignors.equal_subscriptions import EqualSubscriptionsAssignment
from spark_group_source.group.classic.assignors.mixed_subscriptions import MixedSubscriptionsAssignment
from spark_group_source.group.classic.assignors.racks import Racks
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import Partitions, TopicPartition

Assignments = Mapping[str, set[TopicPartition]]


class _StickyBase(Assignor):
    @abstractmethod
    def claim(self, member: Subscriber) -> Claim:
        """Returns the partitions that a member owned."""

    def balance(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> tuple[Assignments, Partitions]:
        """Returns balanced assignments, and the partitions in them whose present owner must revoke them first."""
        partitions = [TopicPartition(topic, number) for topic in sorted(topics) for number in topics[topic]]
        claims = Claims([self.claim(member) for member in members], frozenset(partitions))
        member_racks = Racks(members, partitions, racks)
        if len({frozenset(member.topics) for member in members}) <= 1:
            equal = EqualSubscriptionsAssignment(partitions, claims, member_racks)
            return equal.assigned, frozenset(equal.moving)
        assignments = MixedSubscriptionsAssignment(topics, members, claims, member_racks).owned
        return assignments, _moving(assignments, claims)


class Sticky(_StickyBase):
    """Eager: members revoke all partitions before each rebalance, and get most of them back."""

    name = "sticky"

    def __init__(self) -> None:
        self._last: tuple[frozenset[TopicPartition], int] | None = None

    def assign_partitions(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Assignments:
        """Returns balanced assignments."""
        return self.balance(topics, racks, members)[0]

    def claim(self, member: Subscriber) -> Claim:
        """Returns the last assignment, from the user data: an eager member owns nothing when it joins."""
        partitions, generation = user_data.decode(member.user_data)
        return Claim(member.id, partitions, generation, member.generation)

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Remembers the assignment for the next rebalance."""
        self._last = frozenset(TopicPartition(*tp) for tp in assignment.partitions()), generation

    def user_data(self) -> bytes:
        """The last assignment, encoded; empty before the first."""
        return user_data.encode(*self._last) if self._last else b""


class CooperativeSticky(_StickyBase):
    """Members keep their partitions in a rebalance. A partition that moves is assigned in the next rebalance."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = -1

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Also eager, as in Kafka's client, for members that also have an eager assignor."""
        return [RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER]

    def assign_partitions(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Assignments:
        """Returns balanced assignments, without the partitions that another member must revoke first."""
        assignments, moving = self.balance(topics, racks, members)
        return {member: assigned - moving for member, assigned in assignments.items()}

    def claim(self, member: Subscriber) -> Claim:
        """Returns what the member owns. Clients before Kafka 3.4 send the generation in the user data only."""
        generation = member.generation
        if generation < 0 and len(member.user_data) >= 4:
            (generation,) = struct.unpack_from(">i", member.user_data)
        return Claim(member.id, member.owned, generation, member.generation)

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Remembers the generation for the next rebalance."""
        self._generation = generation

    def user_data(self) -> bytes:
        """The generation, for leaders that read it from the user data only."""
        return struct.pack(">i", self._generation)


def _moving(assignments: Assignments, claims: Claims) -> Partitions:
    """The partitions that are new to their member and that another member must revoke."""
    to_revoke, new = set[TopicPartition](), set[TopicPartition]()
    for claim in claims.claims:
        assigned = assignments[claim.member]
        to_revoke.update(tp for tp in claim.partitions if tp not in assigned)
        new |= assigned.difference(claim.partitions)
    return frozenset(to_revoke & new)
