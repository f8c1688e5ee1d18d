"""Checkpoints that are older than the commits of their own query.

A checkpoint has a random id, which the first logged offset creates and each later one keeps. A commit carries the id if
that checkpoint has logged the committed offset as the end of a batch. A commit with the query's own id beyond the end
that its checkpoint holds therefore shows that the checkpoint has lost batches: a backup was restored, the last files
were deleted, or a copy of the checkpoint runs elsewhere. A crash cannot cause this, because Spark logs a batch before
it runs the batch, and the source commits a batch only after Spark has completed it. The exception is Spark's
asynchronous progress tracking, which writes the log later; Spark allows it only for queries without state.

The option ``restoredCheckpoint`` decides what the query does then: see :class:`RestoredCheckpoint`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_group_source.errors import CheckpointError
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import OffsetRange, Offsets, Partitions, TopicPartition
from spark_group_source.query.offset_history import LoggedOffsets
from spark_group_source.query.starts.rules import Commits
from spark_group_source.text import some

log = logging.getLogger(__name__)

SKIP, REPEAT, FAIL = "skip", "repeat", "fail"
"""The values of ``restoredCheckpoint``."""


class RestoredCheckpoint:
    """Finds partitions in which the checkpoint lacks batches of its query, and applies ``restoredCheckpoint`` to them.

    ``skip`` starts at the commit, with a warning; ``repeat`` where the checkpoint ends; ``fail`` ends the query.

    Only the first start of a partition in this process counts. Otherwise two copies of a checkpoint that run at the
    same time would repeat each other's batches at each rebalance, endlessly. ``_started`` has the partitions that have
    started. ``_overruled`` has the commits that ``repeat`` did not follow: while the group still has such a commit, the
    start that replaces it has not been committed, and the next start must repeat as well.

    Two threads may call it, for different partitions.
    """

    def __init__(self, group_id: str, choice: str) -> None:
        self._group_id = group_id
        self._choice = choice
        self._started: set[TopicPartition] = set()
        self._overruled: dict[TopicPartition, CommittedOffset] = {}

    def find(self, commits: Commits, logged: LoggedOffsets) -> Partitions:
        """The partitions that start for the first time in this process, and whose commit was written with this
        checkpoint but lies beyond its end."""
        restored = set()
        for tp, commit in commits.items():
            if tp in logged.recreated:  # the checkpoint's end is an offset in the former topic
                continue
            is_first_start = tp not in self._started or self._overruled.get(tp) == commit
            if is_first_start and _is_beyond_own_end(commit, logged.ranges.get(tp), logged.checkpoint):
                restored.add(tp)
        return frozenset(restored)

    def to_repeat(self, restored: Partitions) -> Partitions:
        """Those of the ``restored`` partitions that start where the checkpoint ends, whatever the group committed."""
        if self._choice == REPEAT:
            return restored
        return frozenset()

    def check(self, restored: Partitions, starts: Offsets, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Checks where the ``restored`` partitions are about to start.

        Raises:
            CheckpointError: ``restoredCheckpoint`` is ``fail``, and records would be skipped.
        """
        if self._choice != FAIL:
            return
        skipped = _skipped(restored, starts, ranges)
        if skipped:
            raise CheckpointError(
                f"The checkpoint is older than the commits of its query in group '{self._group_id}': it lacks the"
                f" batches that read {some(skipped)}, and 'restoredCheckpoint' is fail.",
                "To read these records again, set 'restoredCheckpoint' to repeat. To continue without them, set it to"
                " skip.",
            )

    def started(
        self, restored: Partitions, starts: Offsets, ranges: Mapping[TopicPartition, OffsetRange], commits: Commits
    ) -> None:
        """Notes that these partitions have started. Logs which records the query skips or repeats in the ``restored``
        ones."""
        self._started |= starts.keys()
        recorded = restored & starts.keys()
        to_repeat = self.to_repeat(recorded)
        for tp in to_repeat:
            self._overruled[tp] = commits[tp]
        repeated = _repeated(to_repeat, starts, commits)
        if repeated:
            log.warning(
                "group %s: the checkpoint is older than the commits of its query, and restoredCheckpoint is repeat: the"
                " query reads %s again",
                self._group_id,
                some(repeated),
            )
        skipped = _skipped(recorded - to_repeat, starts, ranges)
        if skipped:
            log.warning(
                "group %s: the checkpoint is older than the commits of its query: it was restored or copied, or files"
                " in it were deleted. The query does not read %s again, and the query's state lacks these records. To"
                " read these records, stop the query, restore the checkpoint again, and set restoredCheckpoint to"
                " repeat.",
                self._group_id,
                some(skipped),
            )


def _is_beyond_own_end(commit: CommittedOffset, logged: OffsetRange | None, checkpoint: str) -> bool:
    """Whether the commit was written with the checkpoint of this id, which no longer contains the committed offset.

    The lineage may be a later one: the same backup may be restored again after ``repeat`` began a lineage.
    """
    if not checkpoint or commit.checkpoint != checkpoint:
        return False
    if logged is None:
        return True
    return commit.offset > logged.end and commit.lineage >= logged.lineage


def _skipped(restored: Partitions, starts: Offsets, ranges: Mapping[TopicPartition, OffsetRange]) -> list[str]:
    """The offsets, as text, that the checkpoint lacks and the query will not read again, sorted by partition."""
    skipped = []
    for tp in sorted(restored & starts.keys()):
        logged = ranges.get(tp)
        if logged is None:
            skipped.append(f"{tp} before {starts[tp]}")
        elif starts[tp] > logged.end:
            skipped.append(f"{tp} [{logged.end}, {starts[tp]})")
    return skipped


def _repeated(restored: Partitions, starts: Offsets, commits: Commits) -> list[str]:
    """The offsets, as text, that the query has read and will read again, sorted by partition."""
    repeated = []
    for tp in sorted(restored):
        if starts[tp] < commits[tp].offset:
            repeated.append(f"{tp} [{starts[tp]}, {commits[tp].offset})")
    return repeated
