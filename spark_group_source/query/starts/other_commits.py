"""Checks and warnings about the group's commits that this query did not write, when partitions start."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from spark_group_source.errors import OptionError
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.offset_specs import SpecificOffsets, StartSpec, number_in_json
from spark_group_source.options.source_options import SourceOptions, start_is_given, start_setting, stream_start
from spark_group_source.query.starts.rules import Commits
from spark_group_source.text import names, some

log = logging.getLogger(__name__)


def check_prior_commits(spec: StartSpec, commits: Mapping[TopicPartition, CommittedOffset], group_id: str) -> None:
    """Checks the commits of a query with a new checkpoint, when it gets its first assignment.

    Commits of a group that started at the same offsets are expected: another member wrote them, or the query has lost
    its checkpoint. Any other commit is older than the query, for example from a trial run. JSON that covers all
    partitions is the position of another query (``offsets_of_checkpoint``), so a start at other offsets would lose or
    repeat records.

    Raises:
        OptionError: the group has other commits, and ``spec`` covers all partitions.
    """
    if not isinstance(spec, SpecificOffsets):
        return
    others = []
    for tp, commit in sorted(commits.items(), key=lambda item: item[0]):
        given = spec.of(tp)
        if given is not None and given != commit.offset and not commit.started_at(spec.digest):
            others.append(f"{tp} at {commit.offset} and not {number_in_json(given)}")
    if not others:
        return
    if spec.others is None:
        log.warning(
            "group %s: the group's committed offsets take precedence over startingOffsets; the query starts with %s. To"
            " start at startingOffsets, stop the query, set resetOffsetsOnStart to true or choose another"
            " kafka.group.id, and use a new checkpoint: this one decides from now on where the query continues.",
            group_id,
            some(others),
        )
        return
    raise OptionError(
        f"The group '{group_id}' has committed offsets that take precedence over 'startingOffsets': the query would"
        f" start with {some(others)}.",
        "Choose a new 'kafka.group.id', or delete the group (kafka-consumer-groups --delete). If the group's offsets"
        " are right, remove 'startingOffsets'.",
    )


def log_unused_start(options: SourceOptions, commits: Collection[TopicPartition], group_id: str) -> None:
    """Logs that the start that the user has set does not apply to partitions with a commit, at the first assignment of
    a new checkpoint. :func:`check_prior_commits` reports the commits that differ from offsets in JSON."""
    if not commits or not start_is_given(options) or isinstance(stream_start(options), SpecificOffsets):
        return
    log.info(
        "group %s: %s does not apply to the %d partition(s) of which the group has committed offsets: the query"
        " continues there. To ignore these commits, stop the query, set resetOffsetsOnStart to true or choose another"
        " kafka.group.id, and use a new checkpoint: this one decides from now on where the query continues.",
        group_id,
        start_setting(options),
        len(commits),
    )


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
    """Logs once of each kind: commits beside a new checkpoint, commits that do not fit the checkpoint, and those that
    do not fit the clock."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._checkpoint_is_new = False
        self._checkpoint_without_group = False
        self._warned_of_clock = False

    def restore(self, logged: BatchOffset) -> None:
        """Begins with the last offset in the checkpoint."""
        self._checkpoint_is_new = logged.is_empty
        self._checkpoint_without_group = bool(logged.ranges) and not logged.group

    def check(self, commits: Commits, logged: Mapping[TopicPartition, OffsetRange]) -> None:
        """Compares the commits of partitions that start with the ranges that this query has logged of them."""
        self._note_new_checkpoint(commits)
        self._check_group(commits, logged)
        self._check_clock([*commits.values(), *logged.values()])

    def _note_new_checkpoint(self, commits: Commits) -> None:
        """Logs at the first start of partitions that the checkpoint is new but the group is not.

        A further member of a running group looks the same as a query that has lost its checkpoint, so this is no
        warning. After the first start the commits may be this query's own.
        """
        is_first_start, self._checkpoint_is_new = self._checkpoint_is_new, False
        if not is_first_start or not commits:
            return
        log.info(
            "group %s: the checkpoint is new, but the group has committed offsets. If the query's former checkpoint was"
            " lost or deleted, give Spark's file sinks a new directory: in the former one they drop the rows of each"
            " batch whose number it has, without an error, and the group moves on. See"
            " docs/guarantees.md#a-new-checkpoint.",
            self._group_id,
        )

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
