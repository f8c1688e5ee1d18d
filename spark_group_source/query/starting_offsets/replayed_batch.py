"""The batch that Spark has replayed at the start of a query, beside the offsets that the group has committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import OffsetRange, TopicPartition


class ReplayedBatch:
    """The ranges that Spark has just read again, of partitions that have not started since."""

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._ranges = {read.tp: read for read in ranges}

    def has_read_from(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the replay has read ``offset`` and everything that was logged behind it."""
        read = self._ranges.get(tp)
        return read is not None and read.start <= offset < read.end

    def read_by_others(self, commits: Mapping[TopicPartition, CommittedOffset]) -> list[str]:
        """The parts of the batch that other members have read before the replay, as text."""
        return [
            f"{tp} [{read.start}, {min(commits[tp].offset, read.end)})"
            for tp, read in sorted(self._ranges.items())
            if tp in commits and commits[tp].offset > read.start
        ]

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions have started: from here on their commits are this query's own."""
        for tp in partitions:
            self._ranges.pop(tp, None)
