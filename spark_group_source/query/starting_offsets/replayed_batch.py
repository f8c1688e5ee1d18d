"""The batch that Spark has replayed at the start of a query, beside the offsets that the group has committed. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from spark_group_source.group.offsets import CommittedOffset
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.text import some

log = logging.getLogger(__name__)


class ReplayedBatch:
    """The ranges that Spark has just read again, of partitions that have not started since."""

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        self._ranges = {read.tp: read for read in ranges}

    def range_of(self, tp: TopicPartition) -> OffsetRange | None:
        """What was read again of a partition, if anything was."""
        return self._ranges.get(tp)

    def warn_if_read_by_others(self, commits: Mapping[TopicPartition, CommittedOffset], group_id: str) -> None:
        """Logs a warning with the parts of the batch that other members read before the replay."""
        read_twice = [
            f"{tp} [{read.start}, {min(commits[tp].offset, read.end)})"
            for tp, read in sorted(self._ranges.items())
            if tp in commits and commits[tp].offset > read.start
        ]
        if read_twice:
            log.warning(
                "group %s: other members have read a part of the batch that this query has just replayed: %s. Rows that"
                " are added up or appended outside of this query's sink are there twice. Queries that keep state should"
                " not share a group.",
                group_id,
                some(read_twice),
            )

    def started(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions have started: from here on their commits are this query's own."""
        for tp in partitions:
            self._ranges.pop(tp, None)
