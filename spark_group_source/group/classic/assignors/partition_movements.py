"""Partitions that a rebalance has moved between members so far, as Java's PartitionMovements."""

from __future__ import annotations

from spark_group_source.group.classic.assignors.java_order import hash_order, partition_hash
from spark_group_source.offsets import TopicPartition

_Movement = tuple[str, str, str]
"""Topic, first owner, last owner."""


class PartitionMovements:
    """Avoids that two members exchange partitions of one topic: a partition that came moves back instead."""

    def __init__(self) -> None:
        self._movement: dict[TopicPartition, _Movement] = {}
        self._moved: dict[_Movement, _JavaHashSet] = {}

    def partition_to_move(self, tp: TopicPartition, old: str, new: str) -> TopicPartition:
        """The partition to move from ``old`` to ``new``: this one, or one that moved from ``new`` before."""
        if tp in self._movement:
            old = self._movement[tp][1]
        came = self._moved.get((tp.topic, new, old))
        return came.first() if came else tp

    def add(self, tp: TopicPartition, old: str, new: str) -> None:
        """Records a move, from the partition's first owner; a partition that is back there has not moved."""
        if tp in self._movement:
            movement = self._movement.pop(tp)
            old = movement[1]
            self._moved[movement].partitions.pop(tp)
            if not self._moved[movement].partitions:
                del self._moved[movement]
            if old == new:
                return
        self._movement[tp] = tp.topic, old, new
        self._moved.setdefault(self._movement[tp], _JavaHashSet()).add(tp)


class _JavaHashSet:
    """A set whose first element is the same as in Java's ``HashSet``."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, None] = {}
        self._max_size = 0

    def add(self, tp: TopicPartition) -> None:
        self.partitions[tp] = None
        self._max_size = max(self._max_size, len(self.partitions))

    def first(self) -> TopicPartition:
        return hash_order(self.partitions, partition_hash, self._max_size)[0]
