"""Where a partition starts, and by which rule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import NO_LINEAGE, UNKNOWN_EPOCH, BatchOffset, OffsetRange, TopicPartition

log = logging.getLogger(__name__)


class StartRule(Enum):
    """The rule by which a partition starts where it does; the value is for the log."""

    COMMITTED = "the committed offset"
    LOGGED = "the end in the checkpoint"
    UNTAGGED = "an offset committed without this source's tag"
    REPLAYED = "the end of the replayed batch"
    STARTING_OFFSETS = "startingOffsets"
    RESET = "resetOffsetsOnStart"
    ADDED = "the earliest offset of an added partition"
    RECREATED = "the earliest offset of a recreated topic"
    CALLBACK = "startingOffsetsCallback"
    REPEATED = "the end in the checkpoint, by restoredCheckpoint"


class Start(NamedTuple):
    """Where a newly assigned partition starts, and why. If ``lineage`` is ``None``, a new lineage begins there.
    ``epoch`` is the epoch of a leader whose log reached the offset."""

    offset: int
    rule: StartRule
    lineage: int | None = NO_LINEAGE
    epoch: int = UNKNOWN_EPOCH


Commits = Mapping[TopicPartition, CommittedOffset]
Starts = dict[TopicPartition, Start]


def resume_at(
    committed: CommittedOffset | None,
    logged: OffsetRange | None,
    *,
    replayed: OffsetRange | None = None,
    given_up: int | None = None,
) -> Start | None:
    """Where a newly assigned partition starts; ``None`` if the group has no commit and the query has logged nothing.

    The cases are the rows of the table under "Lineages" in ``DESIGN.md``, without the row of a restored checkpoint.
    ``replayed`` and ``given_up`` show the exceptions, in which a commit below the logged end does not move the query
    back.

    Args:
        committed: the group's committed offset, if there is one.
        logged: the last range of the partition that this query logged, if there is one.
        replayed: the range that Spark has replayed after a restart. Its lineage is the time at the end of the replay,
            in milliseconds since 1970, as the id of each lineage is a time. If another program had moved the group back
            to an offset in this range before, the replay has already followed that decision.
        given_up: where the batch began during which this query lost the partition. A commit above that offset and below
            the logged end comes from another consumer that has read the same records, and is no decision to go back.
    """
    if committed is None:
        return _at_logged_end(logged)
    if logged is None:
        return _at_commit(committed)
    if committed.tagged and (committed.lineage, committed.offset) < (logged.lineage, logged.end):
        return _at_logged_end(logged)
    if committed.offset < logged.end:
        if replayed is not None and _is_obeyed(committed, replayed):
            return Start(logged.end, StartRule.REPLAYED, _lineage_after(committed))
        if given_up is not None and _is_of_another_reader(committed, given_up):
            return _at_logged_end(logged)
    return _at_commit(committed)


def _at_logged_end(logged: OffsetRange | None) -> Start | None:
    if logged is None:
        return None
    return Start(logged.end, StartRule.LOGGED, logged.lineage)


def _at_commit(committed: CommittedOffset) -> Start:
    rule = StartRule.COMMITTED if committed.tagged else StartRule.UNTAGGED
    return Start(committed.offset, rule, _lineage_after(committed))


def _lineage_after(committed: CommittedOffset) -> int | None:
    """The lineage of a partition that starts because of this commit; ``None`` if it has no tag, so that a new lineage
    begins."""
    if not committed.tagged:
        return None
    return committed.lineage


def _is_obeyed(committed: CommittedOffset, replayed: OffsetRange) -> bool:
    """Whether a commit that moves the partition back is older than the replay, which has already read from that
    offset."""
    if committed.lineage > replayed.lineage:
        return False
    return replayed.start <= committed.offset < replayed.end


def _is_of_another_reader(committed: CommittedOffset, given_up: int) -> bool:
    """Whether another consumer committed the offsets that it read of the batch that this query gave up."""
    return not committed.tagged and given_up < committed.offset


def log_starts(group_id: str, starts: Mapping[TopicPartition, Start], setting: str) -> None:
    """Logs where partitions start, and by which rule. ``setting`` is the option for partitions without a commit, with
    its value (:func:`.source_options.start_setting`)."""
    if not starts:
        return
    listed = []
    for tp, start in sorted(starts.items()):
        reason = start.rule.value
        if start.rule is StartRule.STARTING_OFFSETS:
            reason = setting
        listed.append(f"{tp} at {start.offset} ({reason})")
    log.info("group %s: starts to read %s", group_id, ", ".join(listed))


def log_ignored_start(group_id: str, logged: BatchOffset, setting: str) -> None:
    """Logs that a query continues at its checkpoint, although the user has set where it is to start.

    Args:
        logged: the last offset in the checkpoint.
        setting: the options for the start of a new checkpoint that are set; empty if there are none.
    """
    if logged.ranges and setting:
        log.info(
            "group %s: the query continues at its checkpoint, and ignores %s for the partitions in it. To start"
            " elsewhere, see docs/positions.md#move-a-group.",
            group_id,
            setting,
        )
