"""The rows that a batch read needs, as far as partitions, offsets and times can tell. Pure.

A filter here only narrows a read: Spark evaluates the query's filters on every row that arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_group_source.offsets import OffsetRange, TopicPartition

_MICROS_PER_MILLI = 1000


class Interval(NamedTuple):
    """Whole numbers from ``first`` to ``last``, both included."""

    first: int = -(2**63)
    last: int = 2**63

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.first, other.first), min(self.last, other.last))

    @property
    def is_empty(self) -> bool:
        """Whether no number lies in it."""
        return self.first > self.last


EVERYTHING = Interval()


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A superset of the rows that a query needs; without arguments all rows.

    ``timestamps`` are microseconds since 1970, as in Spark's column.
    """

    topic_tests: tuple[Callable[[str], bool], ...] = ()
    partition_tests: tuple[Callable[[int], bool], ...] = ()
    offsets: Interval = EVERYTHING
    timestamps: Interval = EVERYTHING

    def keeps_partition(self, tp: TopicPartition) -> bool:
        """Whether any row of the partition may be needed."""
        if self.offsets.is_empty or self.timestamps.is_empty:
            return False
        topic, number = tp
        return all(test(topic) for test in self.topic_tests) and all(test(number) for test in self.partition_tests)

    def keeps_offsets(self, start: int, end: int) -> bool:
        """Whether any of the offsets ``[start, end)`` may be needed."""
        return not (self.offsets & Interval(start, end - 1)).is_empty

    def narrow(self, offset_range: OffsetRange) -> OffsetRange:
        """The part of the range that may be needed, by its offsets."""
        first, last = self.offsets & Interval(offset_range.start, offset_range.end - 1)
        start = min(first, offset_range.end)
        return replace(offset_range, start=start, end=max(start, last + 1))

    @property
    def earliest_time(self) -> int | None:
        """The earliest time that is needed, in milliseconds since 1970 as records have them; ``None`` if all are.

        There is no latest time on purpose. The times of a log need not grow with its offsets, so the first record at or
        after a time says that all records before it are earlier. No record says that all records after it are later.
        """
        milliseconds = -(-self.timestamps.first // _MICROS_PER_MILLI)
        # The broker takes negative times for other requests. A record without a time has -1.
        return milliseconds if milliseconds > 0 else None
