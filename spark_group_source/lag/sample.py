"""Positions and end offsets of partitions at one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.offsets import Offsets, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: ``position`` is the next offset to process, ``end`` the next offset to write.

    ``end`` is the high watermark, or with ``read_committed`` the last stable offset.
    """

    tp: TopicPartition
    position: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets left to process: at least the number of records. Never negative, even after a log truncation."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one lookup at time ``at``, in seconds since 1970.

    If a leader did not return a partition's end offset, only ``positions`` has that partition: its lag is unknown.
    """

    at: float
    positions: Offsets
    ends: Offsets

    def partitions(self) -> tuple[PartitionLag, ...]:
        """The lag of each partition, sorted by topic and number."""
        known = sorted(self.positions.keys() & self.ends.keys())
        return tuple(PartitionLag(tp, self.positions[tp], self.ends[tp]) for tp in known)

    def unknown(self) -> tuple[TopicPartition, ...]:
        """The partitions whose lag is unknown, sorted."""
        return tuple(sorted(self.positions.keys() - self.ends.keys()))
