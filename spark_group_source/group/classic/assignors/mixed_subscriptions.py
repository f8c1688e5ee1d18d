"""Sticky assignment for members with different subscriptions; Java's GeneralAssignmentBuilder.

A partition without an owner goes to the member with the fewest partitions. Then partitions move from members with many
to members with few, while two subscribers of one topic differ by more than one partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from spark_group_source.group.classic.assignors.base import Topics
from spark_group_source.group.classic.assignors.claims import Claims
from spark_group_source.group.classic.assignors.java_order import text_order
from spark_group_source.group.classic.assignors.partition_movements import PartitionMovements
from spark_group_source.group.classic.assignors.racks import Racks
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition


class MixedSubscriptionsAssignment:
    """The assignment of one rebalance: ``owned``, by member id.

    Args:
        topics: the partition numbers of each topic.
        members: all members.
        claims: the partitions that they owned.
        racks: racks of members and partitions. Partitions far from their member's rack are revoked first.
    """

    def __init__(self, topics: Topics, members: Sequence[Subscriber], claims: Claims, racks: Racks) -> None:
        self._racks = racks
        self._former = claims.former_owners()
        self._movements = PartitionMovements()
        self._subscribed = {member.id: frozenset(member.topics) for member in members}
        self._members_of = {
            topic: [member.id for member in members if topic in self._subscribed[member.id]] for topic in topics
        }
        self._partitions = [
            TopicPartition(topic, number)
            for topic in sorted(topics, key=lambda topic: (len(self._members_of[topic]), topic))
            for number in topics[topic]
        ]
        self.owned: dict[str, set[TopicPartition]] = {member.id: set() for member in members}
        self._owner: dict[TopicPartition, str] = {}
        self._count = {topic: Counter[str]() for topic in topics}
        """Number of partitions of each topic, by member."""
        self._weight = {member: rank for rank, member in enumerate(sorted(self.owned, key=text_order))}
        """Sorts members by number of partitions, then by id: that number times the number of members, plus the rank."""
        self._unbalanced_topic: str | None = None
        self._build(claims)

    def _build(self, claims: Claims) -> None:
        revoked = self._keep_owned(claims)
        first = not self._owner
        free = [tp for tp in self._partitions if tp not in self._owner]
        self._assign_free(free)
        movable = [tp for tp in self._partitions if len(self._members_of[tp.topic]) > 1]
        before, imbalance = dict(self._owner), self._imbalance()
        if not revoked:
            self._balance([tp for tp in free if len(self._members_of[tp.topic]) > 1])
        if self._balance(movable) and not first and self._imbalance() >= imbalance:
            for tp, member in before.items():
                self._assign(tp, member)

    def _keep_owned(self, claims: Claims) -> bool:
        """Assigns members what they owned; returns whether subscriptions or racks make any member revoke some."""
        revoked = False
        for member, owned in claims.owned.items():
            for tp in owned:
                if tp.topic not in self._subscribed[member] or self._racks.apart(member, tp):
                    revoked = True
                else:
                    self._assign(tp, member)
        return revoked

    def _assign_free(self, free: list[TopicPartition]) -> None:
        if self._racks.matter:
            far = []
            for tp in free:
                near = [member for member in self._members_of[tp.topic] if not self._racks.apart(member, tp)]
                if near:
                    self._assign(tp, self._lightest(near))
                else:
                    far.append(tp)
            free = far
        for tp in free:
            self._assign(tp, self._lightest(self._members_of[tp.topic]))

    def _balance(self, partitions: Sequence[TopicPartition]) -> bool:
        """Moves partitions while the assignment is unbalanced; returns whether any moved.

        Because another partition may move in place of the chosen one, an assignment can recur. Kafka's client then
        loops forever; ``seen`` ends the loop.
        """
        seen = {frozenset(self._owner.items())}
        while True:
            for tp in partitions:
                if not self._unbalanced():
                    break
                member = self._better_owner(tp)
                if member is not None:
                    actual = self._movements.partition_to_move(tp, self._owner[tp], member)
                    self._movements.add(actual, self._owner[actual], member)
                    self._assign(actual, member)
            owners = frozenset(self._owner.items())
            if owners in seen:
                return len(seen) > 1
            seen.add(owners)

    def _better_owner(self, tp: TopicPartition) -> str | None:
        most = len(self.owned[self._owner[tp]]) - 1
        former = self._former.get(tp)
        if former is not None and tp.topic in self._subscribed[former] and most > len(self.owned[former]):
            return former
        lightest = self._lightest(self._members_of[tp.topic])
        return lightest if most > len(self.owned[lightest]) else None

    def _unbalanced(self) -> bool:
        """Whether two subscribers of a topic differ by more than one partition, and the larger owns one of it."""
        if self._unbalanced_topic is None or not self._is_unbalanced(self._unbalanced_topic):
            self._unbalanced_topic = next(filter(self._is_unbalanced, self._members_of), None)
        return self._unbalanced_topic is not None

    def _is_unbalanced(self, topic: str) -> bool:
        lightest = self._lightest(self._members_of[topic])
        heaviest = max(self._count[topic], key=self._weight.__getitem__)
        return len(self.owned[heaviest]) - len(self.owned[lightest]) > 1

    def _lightest(self, members: Iterable[str]) -> str:
        return min(members, key=self._weight.__getitem__)

    def _imbalance(self) -> int:
        """The sum of the differences in partitions, over all pairs of members that share a topic with another."""
        sizes = sorted(len(self.owned[member]) for member in self.owned if self._has_shared_topic(member))
        return sum(size * (2 * index + 1 - len(sizes)) for index, size in enumerate(sizes))

    def _has_shared_topic(self, member: str) -> bool:
        return any(len(self._members_of.get(topic, ())) > 1 for topic in self._subscribed[member])

    def _assign(self, tp: TopicPartition, member: str) -> None:
        former = self._owner.get(tp)
        if former is not None:
            self.owned[former].discard(tp)
            self._weight[former] -= len(self.owned)
            self._count[tp.topic][former] -= 1
            if not self._count[tp.topic][former]:
                del self._count[tp.topic][former]
        self._owner[tp] = member
        self.owned[member].add(tp)
        self._weight[member] += len(self.owned)
        self._count[tp.topic][member] += 1
