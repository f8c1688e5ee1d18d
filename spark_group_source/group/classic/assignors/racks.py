"""Racks of members and of replicas (KIP-881)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from spark_group_source.group.classic.assignors.base import PartitionRacks
from spark_group_source.group.classic.assignors.subscriber import Subscriber
from spark_group_source.offsets import TopicPartition

_NO_RACKS: frozenset[str] = frozenset()


def matter(members: Iterable[Subscriber], partitions: Collection[frozenset[str]]) -> bool:
    """Whether assignments depend on racks.

    They do not if no rack has both a member and a replica, or if all partitions have replicas in the same racks.
    """
    combinations = set(partitions)
    replica_racks = _NO_RACKS.union(*combinations)
    return len(combinations) > 1 and any(member.rack in replica_racks for member in members if member.rack)


class Racks:
    """Racks of members and partitions, for the sticky assignors; empty if racks do not matter."""

    def __init__(
        self, members: Iterable[Subscriber], partitions: Collection[TopicPartition], racks: PartitionRacks
    ) -> None:
        self._of_member = {member.id: member.rack for member in members if member.rack}
        self._of_partition = {tp: racks.get(tp, _NO_RACKS) for tp in partitions} if self._of_member else {}
        self.matter = matter(members, self._of_partition.values())
        if not self.matter:
            self._of_member = {}

    def apart(self, member: str, tp: TopicPartition) -> bool:
        """Whether the member has a rack, and no replica of this partition is in it."""
        rack = self._of_member.get(member)
        return rack is not None and rack not in self._of_partition[tp]

    def rarest_first(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Sorts partitions by the number of members in their racks."""
        members = Counter(self._of_member.values())
        return sorted(partitions, key=lambda tp: sum(members[rack] for rack in self._of_partition[tp]))

    def nearby(self, tp: TopicPartition, members: Sequence[str], start: int) -> int | None:
        """The index of the next member in a rack of this partition's replicas, from ``start`` on and around."""
        racks = self._of_partition[tp]
        for index in chain(range(start, len(members)), range(start)):
            if self._of_member.get(members[index]) in racks:
                return index
        return None
