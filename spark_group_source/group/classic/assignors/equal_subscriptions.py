"""Sticky assignment for members with equal subscriptions, in linear time; Java's ConstrainedAssignmentBuilder.

Every member gets the same number of partitions, or one more. Each keeps its partitions up to that number; members with
fewer get the others in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from spark_group_source.group.classic.assignors.claims import Claims
from spark_group_source.group.classic.assignors.java_order import text_order
from spark_group_source.group.classic.assignors.racks import Racks
from spark_group_source.offsets import TopicPartition


class EqualSubscriptionsAssignment:
    """The assignment of one rebalance, in ``assigned``.

    Args:
        partitions: all partitions, sorted.
        claims: the partitions that members owned.
        racks: racks of members and partitions. Partitions far from their member's rack are revoked first.
    """

    def __init__(self, partitions: Sequence[TopicPartition], claims: Claims, racks: Racks) -> None:
        self._claims = claims
        self._racks = racks
        self._size, self._larger = divmod(len(partitions), max(1, len(claims.owned)))
        """Minimum number of partitions of each member, and how many members may still get one more."""
        self._small: list[str] = []
        """Members with fewer partitions than that."""
        self._exact: deque[str] = deque()
        """Members with that number, which may get one more."""
        self._released: dict[TopicPartition, str] = {}
        self.assigned: dict[str, set[TopicPartition]] = {}
        self.moving: set[TopicPartition] = set()
        """Partitions that their owner must revoke before the new owner gets them."""
        self._keep_owned()
        self._assign_rest(partitions)

    def _keep_owned(self) -> None:
        most = self._size + (self._larger > 0)
        for member, owned in self._claims.owned.items():
            far = {tp for tp in owned if self._racks.apart(member, tp)}
            near = sorted(owned - far - self._claims.contested, key=lambda tp: (tp.partition, tp.topic))
            size = self._size
            if len(near) < size:
                self._small.append(member)
            elif len(near) >= most and self._larger:
                size = most
                self._use_larger()
            elif self._larger:
                self._exact.append(member)
            self.assigned[member] = set(near[:size])
            self._released |= dict.fromkeys([*far, *near[size:]], member)

    def _use_larger(self) -> None:
        self._larger -= 1
        if not self._larger:
            self._exact.clear()

    def _assign_rest(self, partitions: Sequence[TopicPartition]) -> None:
        kept = set[TopicPartition]().union(*self.assigned.values())
        free: Iterable[TopicPartition] = [tp for tp in partitions if tp not in kept]
        self._small.sort(key=text_order)
        self._exact = deque(sorted(self._exact, key=text_order))
        if self._racks.matter:
            free = self._assign_nearby(self._racks.rarest_first(free))
        turn = 0
        for tp in free:
            if not self._small:
                self._assign(tp, self._exact.popleft())
                continue
            turn %= len(self._small)
            member = self._small[turn]
            self._assign(tp, member)
            if len(self.assigned[member]) == self._size:
                del self._small[turn]
                self._exact.append(member)
            else:
                turn += 1

    def _assign_nearby(self, free: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Assigns partitions to members near a replica; returns the partitions without such a member."""
        left, turn = [], 0
        for tp in free:
            index = self._racks.nearby(tp, self._small, turn)
            if index is not None:
                member = self._small[index]
                self._assign(tp, member)
                if len(self.assigned[member]) == self._size:
                    del self._small[index]
                    if self._larger:
                        self._exact.append(member)
                else:
                    index += 1
                turn = index % max(1, len(self._small))
                continue
            index = self._racks.nearby(tp, self._exact, 0)
            if index is None:
                left.append(tp)
                continue
            self._assign(tp, self._exact[index])
            del self._exact[index]
            self._use_larger()
        return left

    def _assign(self, tp: TopicPartition, member: str) -> None:
        self.assigned[member].add(tp)
        if self._released.get(tp, member) != member or tp in self._claims.contested:
            self.moving.add(tp)
