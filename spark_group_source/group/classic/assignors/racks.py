"""Racks of members and of replicas (KIP-881)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from spark_group_source.group.classic.assignors.base import PartitionRacks
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition

_NOWHERE: frozenset[str] = frozenset()


def matter(members: Iterable[Subscriber], partitions: Collection[frozenset[str]]) -> bool:
    """Whether it matters for the distance to a replica which member has which partition.

    It does not if no rack has both a member and a replica, or if all partitions have replicas in the same racks.
    """
    kinds = set(partitions)
    everywhere = _NOWHERE.union(*kinds)
    return len(kinds) > 1 and any(each.rack in everywhere for each in members if each.rack)


class Racks:
    """Where members and partitions are, as the sticky assignors use it. Nothing, if racks do not matter."""

    def __init__(
        self, members: Iterable[Subscriber], partitions: Collection[TopicPartition], racks: PartitionRacks
    ) -> None:
        self._of_member = {each.id: each.rack for each in members if each.rack}
        self._of_partition = {tp: racks.get(tp, _NOWHERE) for tp in partitions} if self._of_member else {}
        self.matter = matter(members, self._of_partition.values())
        if not self.matter:
            self._of_member = {}

    def apart(self, member: str, tp: TopicPartition) -> bool:
        """Whether no replica of this partition is in the member's rack. A member without a rack is near everything."""
        rack = self._of_member.get(member)
        return rack is not None and rack not in self._of_partition[tp]

    def rarest_first(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Sorts the partitions by how many members are near them."""
        members = Counter(self._of_member.values())
        return sorted(partitions, key=lambda tp: sum(members[rack] for rack in self._of_partition[tp]))

    def nearby(self, tp: TopicPartition, members: Sequence[str], start: int) -> int | None:
        """The index of the next member with a rack where this partition has a replica, from ``start`` on and around."""
        racks = self._of_partition[tp]
        for index in chain(range(start, len(members)), range(start)):
            if self._of_member.get(members[index]) in racks:
                return index
        return None
