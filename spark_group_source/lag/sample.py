"""One look at partitions: where their reader stands, and where their logs end. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.offsets import Offsets, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition. An offset is the next one: ``position`` to be processed, ``end`` to be written.

    ``end`` is the high watermark, or with ``read_committed`` the last stable offset.
    """

    tp: TopicPartition
    position: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets still to be processed: at least the number of records. Never negative, also in a log that was cut."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one look found at time ``at``, in seconds since 1970.

    A partition whose leader did not tell the end of its log is in ``positions`` alone: its lag is unknown.
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
