"""Sticky shares of members that are not all subscribed to the same topics.

What is free goes to the member with the fewest partitions. Then partitions move from members with many to members with
few, as long as two members of one topic differ by more than one partition.
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
    """The shares of one rebalance: ``owned``, by member id.

    Args:
        topics: the partition numbers of each topic.
        members: all members.
        claims: what they had.
        racks: where members and partitions are. What a member has far from its rack it gives up first.
    """

    def __init__(self, topics: Topics, members: Sequence[Subscriber], claims: Claims, racks: Racks) -> None:
        self._racks = racks
        self._former = claims.former_owners()
        self._movements = PartitionMovements()
        self._subscribed = {each.id: frozenset(each.topics) for each in members}
        self._members_of = {
            topic: [each.id for each in members if topic in self._subscribed[each.id]] for topic in topics
        }
        self._partitions = [
            TopicPartition(topic, number)
            for topic in sorted(topics, key=lambda topic: (len(self._members_of[topic]), topic))
            for number in topics[topic]
        ]
        self.owned: dict[str, set[TopicPartition]] = {each.id: set() for each in members}
        self._owner: dict[TopicPartition, str] = {}
        self._count = {topic: Counter[str]() for topic in topics}
        """How many partitions of a topic each member has."""
        self._weight = {each: rank for rank, each in enumerate(sorted(self.owned, key=text_order))}
        """Sorts members by how many partitions they have, then by id: the number times the members, plus the rank."""
        self._uneven_topic: str | None = None
        self._build(claims)

    def _build(self, claims: Claims) -> None:
        revoked = self._keep(claims)
        first = not self._owner
        free = [tp for tp in self._partitions if tp not in self._owner]
        self._assign(free)
        movable = [tp for tp in self._partitions if len(self._members_of[tp.topic]) > 1]
        before, spread = dict(self._owner), self._spread()
        if not revoked:
            self._level([tp for tp in free if len(self._members_of[tp.topic]) > 1])
        if self._level(movable) and not first and self._spread() >= spread:
            for tp, member in before.items():
                self._give(tp, member)

    def _keep(self, claims: Claims) -> bool:
        """Gives members what they had; returns whether one must give something up, be it balanced or not."""
        revoked = False
        for member, owned in claims.owned.items():
            for tp in owned:
                if tp.topic not in self._subscribed[member] or self._racks.apart(member, tp):
                    revoked = True
                else:
                    self._give(tp, member)
        return revoked

    def _assign(self, free: list[TopicPartition]) -> None:
        if self._racks.matter:
            far = []
            for tp in free:
                near = [each for each in self._members_of[tp.topic] if not self._racks.apart(each, tp)]
                if near:
                    self._give(tp, self._lightest(near))
                else:
                    far.append(tp)
            free = far
        for tp in free:
            self._give(tp, self._lightest(self._members_of[tp.topic]))

    def _level(self, partitions: Sequence[TopicPartition]) -> bool:
        """Moves partitions while that makes the shares more even; returns whether any moved.

        A partition that moves in place of another one may have been somewhere else, so this can run in circles, and in
        Kafka's own client it does so for ever: ``seen`` ends that.
        """
        seen = {frozenset(self._owner.items())}
        while True:
            for tp in partitions:
                if not self._uneven():
                    break
                member = self._better_owner(tp)
                if member is not None:
                    actual = self._movements.instead_of(tp, self._owner[tp], member)
                    self._movements.add(actual, self._owner[actual], member)
                    self._give(actual, member)
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

    def _uneven(self) -> bool:
        """Whether two members of any topic differ by more than one partition, and the larger has one of that topic."""
        if self._uneven_topic is None or not self._is_uneven(self._uneven_topic):
            self._uneven_topic = next(filter(self._is_uneven, self._members_of), None)
        return self._uneven_topic is not None

    def _is_uneven(self, topic: str) -> bool:
        lightest = self._lightest(self._members_of[topic])
        heaviest = max(self._count[topic], key=self._weight.__getitem__)
        return len(self.owned[heaviest]) - len(self.owned[lightest]) > 1

    def _lightest(self, members: Iterable[str]) -> str:
        return min(members, key=self._weight.__getitem__)

    def _spread(self) -> int:
        """How uneven the shares are: the sum of the differences of all pairs of members that share any topic."""
        sizes = sorted(len(self.owned[each]) for each in self.owned if self._takes_part(each))
        return sum(size * (2 * index + 1 - len(sizes)) for index, size in enumerate(sizes))

    def _takes_part(self, member: str) -> bool:
        return any(len(self._members_of.get(topic, ())) > 1 for topic in self._subscribed[member])

    def _give(self, tp: TopicPartition, member: str) -> None:
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
