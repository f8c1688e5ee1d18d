"""Warnings about the group's commits that this query did not write, when partitions start."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.query.starts.rules import Commits
from spark_group_source.text import names, some

log = logging.getLogger(__name__)


def warn_if_read_by_others(
    replayed: Mapping[TopicPartition, OffsetRange], commits: Mapping[TopicPartition, CommittedOffset], group_id: str
) -> None:
    """Logs a warning with the parts of a replayed batch that other members read before the replay."""
    read_twice = []
    for tp, read in sorted(replayed.items()):
        commit = commits.get(tp)
        if commit is not None and commit.offset > read.start:
            read_twice.append(f"{tp} [{read.start}, {min(commit.offset, read.end)})")
    if read_twice:
        log.warning(
            "group %s: other members have read a part of the batch that this query has just replayed: %s. A sum or"
            " a table to which several queries write has these records twice. Queries that keep state should not share"
            " a group.",
            group_id,
            some(read_twice),
        )


MAX_CLOCK_SKEW = 60.0
"""Seconds by which a lineage may lie in the future without a warning."""


class CommitWarnings:
    """Logs once of each kind: commits that do not fit the checkpoint, and those that do not fit the clock."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._checkpoint_without_group = False
        self._warned_of_clock = False

    def restore(self, logged: BatchOffset) -> None:
        """Begins with the last offset in the checkpoint."""
        self._checkpoint_without_group = bool(logged.ranges) and not logged.group

    def check(self, commits: Commits, logged: Mapping[TopicPartition, OffsetRange]) -> None:
        """Compares the commits of partitions that start with the ranges that this query has logged of them."""
        self._check_group(commits, logged)
        self._check_clock([*commits.values(), *logged.values()])

    def _check_group(self, commits: Commits, logged: Mapping[TopicPartition, OffsetRange]) -> None:
        """Warns if the checkpoint may belong to another group."""
        if not self._checkpoint_without_group or not logged:
            return
        if logged.keys() & commits.keys():
            return
        self._checkpoint_without_group = False
        log.warning(
            "group %s: the checkpoint does not name its group, and this group has committed nothing of %s. If the"
            " checkpoint belongs to another group, stop the query and use a new checkpoint location.",
            self._group_id,
            names(logged),
        )

    def _check_clock(self, positions: Iterable[CommittedOffset | OffsetRange]) -> None:
        """Warns if a lineage began in the future."""
        latest = max([0, *(each.lineage for each in positions)])
        ahead = latest / 1000 - time.time()
        if self._warned_of_clock or ahead <= MAX_CLOCK_SKEW:
            return
        self._warned_of_clock = True
        log.warning(
            "group %s: the group's offsets were moved at a time that is %.0f s in the future: the clock of this host or"
            " of another host is wrong. Until that time, a later move may count as the earlier one.",
            self._group_id,
            ahead,
        )
