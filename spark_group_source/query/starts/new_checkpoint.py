"""The first assignment of a query with a new checkpoint, in a group that has commits already.

The checkpoint does not tell whose commits these are: those of the other members of a running group, of an earlier trial
run, or of this query, whose former checkpoint was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_group_source.errors import OptionError
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import BatchOffset, Partitions, TopicPartition
from spark_group_source.options.offset_specs import SpecificOffsets, StartSpec, number_in_json
from spark_group_source.options.source_options import SourceOptions, start_is_given, start_setting, stream_start
from spark_group_source.query.starts.rules import Commits
from spark_group_source.text import some

log = logging.getLogger(__name__)


class NewCheckpoint:
    """What the group had committed before a query with a new checkpoint began.

    ``unchecked`` are the partitions whose commits are still to be checked: at first, all that exist. Those of other
    members are among them, because if the query gets such a partition later, nothing shows whether its commit is older
    than the query. There are none if the checkpoint is not new.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.unchecked: Partitions = frozenset()
        self._options = options
        self._group_id = options.group.group_id

    def restore(self, logged: BatchOffset, existing: Collection[TopicPartition]) -> None:
        """Begins with the last offset in the checkpoint, and the partitions that exist now."""
        if logged.is_empty:
            self.unchecked = frozenset(existing)

    def check(self, commits: Commits, unknown: Collection[TopicPartition]) -> None:
        """Checks the commits of the unchecked partitions, and logs what follows from them.

        Args:
            commits: the group's commits.
            unknown: the partitions whose commits the coordinator does not return now. They stay unchecked.

        Raises:
            OptionError: the commits contradict ``startingOffsets`` (:func:`check_prior_commits`).
        """
        if not self.unchecked:
            return
        if not self._options.reset_offsets_on_start:
            check_prior_commits(stream_start(self._options), commits, self._group_id)
        committed = self.unchecked & commits.keys()
        if committed:
            self._log_commits()
            self._log_unused_start(committed)
        self.unchecked = self.unchecked.intersection(unknown)

    def _log_commits(self) -> None:
        """A further member of a running group looks the same as a query that has lost its checkpoint, so this is no
        warning."""
        log.info(
            "group %s: the checkpoint is new, but the group has committed offsets. If the query's former checkpoint was"
            " lost or deleted, give Spark's file sinks a new directory: in the former one they drop the rows of each"
            " batch whose number it has, without an error, and the group moves on. See"
            " docs/guarantees.md#a-new-checkpoint.",
            self._group_id,
        )

    def _log_unused_start(self, committed: Partitions) -> None:
        """Logs that the start that the user has set does not apply to partitions with a commit. With offsets in JSON,
        :func:`check_prior_commits` reports the commits that differ from them."""
        options = self._options
        if options.reset_offsets_on_start or not start_is_given(options):
            return
        if isinstance(stream_start(options), SpecificOffsets):
            return
        log.info(
            "group %s: %s does not apply to the %d partition(s) of which the group has committed offsets: the query"
            " continues there. To ignore these commits, stop the query, set resetOffsetsOnStart to true or choose"
            " another kafka.group.id, and use a new checkpoint: this one decides from now on where the query"
            " continues.",
            self._group_id,
            start_setting(options),
            len(committed),
        )


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
