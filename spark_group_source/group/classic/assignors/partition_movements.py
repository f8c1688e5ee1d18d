"""Partitions that a rebalance has moved between members so far."""

from __future__ import annotations

from spark_group_source.group.classic.assignors.java_order import hash_order, partition_hash
from spark_group_source.offsets import TopicPartition

_Way = tuple[str, str, str]
"""Topic, first owner, last owner."""


class PartitionMovements:
    """Avoids that two members exchange partitions of one topic: one way back is the way of a partition that came."""

    def __init__(self) -> None:
        self._way: dict[TopicPartition, _Way] = {}
        self._moved: dict[_Way, _Moved] = {}

    def instead_of(self, tp: TopicPartition, old: str, new: str) -> TopicPartition:
        """The partition to move from ``old`` to ``new``: one that came from there, rather than this one."""
        if tp in self._way:
            old = self._way[tp][1]
        came = self._moved.get((tp.topic, new, old))
        return came.first() if came else tp

    def add(self, tp: TopicPartition, old: str, new: str) -> None:
        """This partition moves; what counts is where it was at first, and that it has not moved if it is back there."""
        if tp in self._way:
            way = self._way.pop(tp)
            old = way[1]
            self._moved[way].partitions.pop(tp)
            if not self._moved[way].partitions:
                del self._moved[way]
            if old == new:
                return
        self._way[tp] = tp.topic, old, new
        self._moved.setdefault(self._way[tp], _Moved()).add(tp)


class _Moved:
    """A set whose first element is that of Java's ``HashSet``."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, None] = {}
        self._most = 0

    def add(self, tp: TopicPartition) -> None:
        self.partitions[tp] = None
        self._most = max(self._most, len(self.partitions))

    def first(self) -> TopicPartition:
        return hash_order(self.partitions, partition_hash, self._most)[0]
