"""The assignors ``sticky`` and ``cooperative-sticky``: balanced, and members keep what they had."""

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

Shares = Mapping[str, set[TopicPartition]]


class _Balanced(Assignor):
    @abstractmethod
    def claim(self, member: Subscriber) -> Claim:
        """What a member had."""

    def balance(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> tuple[Shares, Partitions]:
        """Balanced shares, and the partitions in them that have another owner until this rebalance has ended."""
        partitions = [TopicPartition(topic, number) for topic in sorted(topics) for number in topics[topic]]
        claims = Claims([self.claim(each) for each in members], frozenset(partitions))
        near = Racks(members, partitions, racks)
        if len({frozenset(each.topics) for each in members}) <= 1:
            equal = EqualSubscriptionsAssignment(partitions, claims, near)
            return equal.shares, frozenset(equal.moving)
        shares = MixedSubscriptionsAssignment(topics, members, claims, near).owned
        return shares, _moving(shares, claims)


class Sticky(_Balanced):
    """Eager: members give up everything before each rebalance, and get most of it back."""

    name = "sticky"

    def __init__(self) -> None:
        self._last: tuple[frozenset[TopicPartition], int] | None = None

    def share(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Shares:
        """Balanced shares."""
        return self.balance(topics, racks, members)[0]

    def claim(self, member: Subscriber) -> Claim:
        """The last assignment, which the member tells in its user data: it owns nothing any more."""
        partitions, generation = user_data.decode(member.user_data)
        return Claim(member.id, partitions, generation, member.generation)

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Keeps the assignment for the next rebalance."""
        self._last = frozenset(TopicPartition(*each) for each in assignment.partitions()), generation

    def user_data(self) -> bytes:
        """The last assignment; empty if there was none."""
        return user_data.encode(*self._last) if self._last else b""


class CooperativeSticky(_Balanced):
    """Members keep their partitions through a rebalance. A partition that moves is free only in the next one."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = -1

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Eager too, as in Kafka's own client, for members that offer it beside an eager assignor."""
        return [RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER]

    def share(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Shares:
        """Balanced shares, without the partitions that another member must give up first."""
        shares, moving = self.balance(topics, racks, members)
        return {member: owned - moving for member, owned in shares.items()}

    def claim(self, member: Subscriber) -> Claim:
        """What the member owns. Clients before Kafka 3.4 tell the generation in the user data only."""
        generation = member.generation
        if generation < 0 and len(member.user_data) >= 4:
            (generation,) = struct.unpack_from(">i", member.user_data)
        return Claim(member.id, member.owned, generation, member.generation)

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Keeps the generation for the next rebalance."""
        self._generation = generation

    def user_data(self) -> bytes:
        """The generation, for leaders that read it here only."""
        return struct.pack(">i", self._generation)


def _moving(shares: Shares, claims: Claims) -> Partitions:
    """The partitions that are new to their member and that another one must give up."""
    given_up, new = set[TopicPartition](), set[TopicPartition]()
    for claim in claims.claims:
        share = shares[claim.member]
        given_up.update(tp for tp in claim.partitions if tp not in share)
        new |= share.difference(claim.partitions)
    return frozenset(given_up & new)
