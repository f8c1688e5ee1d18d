"""Sticky shares of members that are all subscribed to the same topics, in linear time.

Every member gets the same number of partitions, or one more. Each keeps what it had up to that number; members that
have fewer are filled up in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from spark_group_source.group.classic.assignors.claims import Claims
from spark_group_source.group.classic.assignors.java_order import text_order
from spark_group_source.group.classic.assignors.racks import Racks
from spark_group_source.offsets import TopicPartition


class EqualSubscriptionsAssignment:
    """The shares of one rebalance.

    Args:
        partitions: all of them, sorted.
        claims: what members had.
        racks: where members and partitions are. What a member has far from its rack it gives up first.
    """

    def __init__(self, partitions: Sequence[TopicPartition], claims: Claims, racks: Racks) -> None:
        self._claims = claims
        self._racks = racks
        self._size, self._larger = divmod(len(partitions), max(1, len(claims.owned)))
        """Of how many partitions each member gets at least, and how many members may still get one more."""
        self._small: list[str] = []
        """Members that have fewer than that."""
        self._exact: deque[str] = deque()
        """Members that have as many, and may get one more."""
        self._released: dict[TopicPartition, str] = {}
        self.shares: dict[str, set[TopicPartition]] = {}
        self.moving: set[TopicPartition] = set()
        """Partitions that another member must give up before the new owner may have them."""
        self._keep()
        self._fill(partitions)

    def _keep(self) -> None:
        most = self._size + (self._larger > 0)
        for member, owned in self._claims.owned.items():
            far = {tp for tp in owned if self._racks.apart(member, tp)}
            near = sorted(owned - far - self._claims.contested, key=lambda tp: (tp.partition, tp.topic))
            size = self._size
            if len(near) < size:
                self._small.append(member)
            elif len(near) >= most and self._larger:
                size = most
                self._enlarged()
            elif self._larger:
                self._exact.append(member)
            self.shares[member] = set(near[:size])
            self._released |= dict.fromkeys([*far, *near[size:]], member)

    def _enlarged(self) -> None:
        self._larger -= 1
        if not self._larger:
            self._exact.clear()

    def _fill(self, partitions: Sequence[TopicPartition]) -> None:
        kept = set[TopicPartition]().union(*self.shares.values())
        free: Iterable[TopicPartition] = [tp for tp in partitions if tp not in kept]
        self._small.sort(key=text_order)
        self._exact = deque(sorted(self._exact, key=text_order))
        if self._racks.matter:
            free = self._fill_nearby(self._racks.rarest_first(free))
        turn = 0
        for tp in free:
            if not self._small:
                self._give(tp, self._exact.popleft())
                continue
            turn %= len(self._small)
            member = self._small[turn]
            self._give(tp, member)
            if len(self.shares[member]) == self._size:
                del self._small[turn]
                self._exact.append(member)
            else:
                turn += 1

    def _fill_nearby(self, free: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Gives members partitions near them, and returns the partitions for which that was not possible."""
        left, turn = [], 0
        for tp in free:
            index = self._racks.nearby(tp, self._small, turn)
            if index is not None:
                member = self._small[index]
                self._give(tp, member)
                if len(self.shares[member]) == self._size:
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
            self._give(tp, self._exact[index])
            del self._exact[index]
            self._enlarged()
        return left

    def _give(self, tp: TopicPartition, member: str) -> None:
        self.shares[member].add(tp)
        if self._released.get(tp, member) != member or tp in self._claims.contested:
            self.moving.add(tp)
