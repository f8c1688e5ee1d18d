"""What the options mean in a stream, and in a bounded read: what is needed, refused or ignored, and where it starts.

Spark makes the source without telling which of the two it is for, so this is looked at when the reader is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spark_group_source.errors import OptionError
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    EndSpec,
    FromCommitted,
    Latest,
    SpecificOffsets,
    StartSpec,
)
from spark_group_source.options.table import SourceOptions

STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "resetOffsetsOnStart",
    "rebalanceCallback",
    "groupCommit.timeoutMs",
    "groupCommit.numRetries",
    "groupCommit.retryIntervalMs",
    "onCommitFailure",
    "commitMetadata",
    "kafka.group.instance.id",
    "leaveGroupOnStop",
    "kafka.partition.assignment.strategy",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.max.poll.interval.ms",
)
"""Options that mean nothing in a bounded read, which has one batch and no member: named in a warning, and ignored."""


def check_stream(options: SourceOptions) -> None:
    """Refuses what a stream cannot be read with.

    Raises:
        OptionError: there is no group, or an end is given.
    """
    _need_group(options, "a stream is read as a member of a consumer group")
    for end in (options.ending_timestamp, options.ending_offsets_by_timestamp, options.ending_offsets):
        if end is not None:
            raise OptionError(
                f"Option '{'endingOffsets' if isinstance(end, Latest) else end.option}' is given, and a stream has no"
                " end.",
                "Leave it out. Trigger.AvailableNow reads up to what there is when it begins;"
                " spark.read.format('kafka-group') reads up to any offset or time.",
            )


def check_batch(options: SourceOptions) -> None:
    """Refuses what a bounded read cannot be made with.

    Raises:
        OptionError: it would start at the end of a log, end at the beginning of one, or lacks its group.
    """
    start, end = batch_start(options), batch_end(options)
    places = start.offsets.values() if isinstance(start, SpecificOffsets) else [start]
    if any(isinstance(each, Latest) for each in places):
        raise OptionError(
            "Option 'startingOffsets' is latest (-1), and a bounded read from there has no records.",
            "Give offsets, earliest (-2) or committed, or a time with 'startingTimestamp'.",
        )
    if isinstance(end, SpecificOffsets) and any(isinstance(each, Earliest) for each in end.offsets.values()):
        raise OptionError(
            "Option 'endingOffsets' has -2, the beginning of a log, and a bounded read up to there has no records.",
            "Give offsets, or -1 for the end of a log.",
        )
    if isinstance(start, FromCommitted):
        _need_group(options, "'startingOffsets' is committed")


def stream_start(options: SourceOptions) -> StartSpec:
    """Where a stream starts partitions that have no committed offset."""
    return _start(options, Latest(), Latest())


def batch_start(options: SourceOptions) -> StartSpec:
    """Where a bounded read starts.

    What a group without a committed offset has not processed is everything: that is read unless
    ``startingOffsetsFallback`` says otherwise.
    """
    return _start(options, Earliest(), Earliest())


def batch_end(options: SourceOptions) -> EndSpec:
    """Where a bounded read ends."""
    return options.ending_timestamp or options.ending_offsets_by_timestamp or options.ending_offsets or Latest()


def ignored_in_batch_reads(given: Iterable[str]) -> list[str]:
    """Those of the options given that a bounded read ignores."""
    lower = {name.lower() for name in given}
    return [name for name in STREAM_ONLY if name.lower() in lower]


def _start(options: SourceOptions, default: Earliest | Latest, uncommitted: Earliest | Latest) -> StartSpec:
    time: AtTimestamp | None = options.starting_timestamp or options.starting_offsets_by_timestamp
    if time is not None:
        return replace(time, or_latest=options.starting_time_or_latest)
    if isinstance(options.starting_offsets, FromCommitted):
        return options.starting_offsets_fallback or FromCommitted(uncommitted)
    return options.starting_offsets or default


def _need_group(options: SourceOptions, why: str) -> None:
    if not options.group_id:
        raise OptionError(f"Option 'kafka.group.id' is missing: {why}.", "Give it with .option('kafka.group.id', ...).")
