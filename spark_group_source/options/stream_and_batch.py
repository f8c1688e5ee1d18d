"""The options in a stream and in a batch read: which are required, invalid or ignored, and where each starts and ends.

Spark creates the source before it asks for a stream or a batch reader, so the reader makes these checks.
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
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "availableNowTimeout",
    "batchInterval",
    "resetOffsetsOnStart",
    "rebalanceCallback",
    "groupCommit.timeoutMs",
    "groupCommit.numRetries",
    "groupCommit.retryIntervalMs",
    "onCommitFailure",
    "commitMetadata",
    "kafka.group.instance.id",
    "leaveGroupOnStop",
    "kafka.group.protocol",
    "kafka.group.remote.assignor",
    "kafka.partition.assignment.strategy",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.max.poll.interval.ms",
)
"""Options that a batch read ignores with a warning: it has one batch and no member."""


def check_stream(options: SourceOptions) -> None:
    """Checks the options of a stream.

    Raises:
        OptionError: the group id is missing, or an end is set.
    """
    _require_group(options, "a stream is a member of a consumer group")
    for end in (options.ending_timestamp, options.ending_offsets_by_timestamp, options.ending_offsets):
        if end is not None:
            option = "endingOffsets" if isinstance(end, Latest) else end.option
            raise OptionError(
                f"Option '{option}' is set, and a stream has no end.",
                "Remove it. To stop at the current end offsets use .trigger(availableNow=True). To stop at an offset or"
                " time use spark.read.format('kafka-group').",
            )


def check_batch(options: SourceOptions) -> None:
    """Checks the options of a batch read.

    Raises:
        OptionError: it starts at latest or ends at earliest, or the group id is missing.
    """
    start, end = batch_start(options), batch_end(options)
    starts = [*start.offsets.values(), start.others] if isinstance(start, SpecificOffsets) else [start]
    if Latest() in starts:
        raise OptionError(
            "Option 'startingOffsets' is latest (-1), and a batch read from there has no records.",
            "Set it to offsets, earliest (-2) or committed, or set a time with 'startingTimestamp'.",
        )
    if isinstance(end, SpecificOffsets) and Earliest() in end.offsets.values():
        raise OptionError(
            "Option 'endingOffsets' contains -2 (earliest), and a batch read up to there has no records.",
            "Set it to offsets, or -1 for the end offset.",
        )
    if isinstance(start, FromCommitted):
        _require_group(options, "'startingOffsets' is committed")


def stream_start(options: SourceOptions) -> StartSpec:
    """The start of a stream in partitions without a committed offset."""
    return _start(options, Latest(), Latest())


def batch_start(options: SourceOptions) -> StartSpec:
    """The start of a batch read.

    A group without a committed offset has processed nothing, so the read starts at earliest unless
    ``startingOffsetsFallback`` is set.
    """
    return _start(options, Earliest(), Earliest())


def batch_end(options: SourceOptions) -> EndSpec:
    """The end of a batch read."""
    return options.ending_timestamp or options.ending_offsets_by_timestamp or options.ending_offsets or Latest()


def ignored_in_batch_reads(given: Iterable[str]) -> list[str]:
    """The options among ``given`` that a batch read ignores."""
    lower = {name.lower() for name in given}
    return [name for name in STREAM_ONLY if name.lower() in lower]


def _start(options: SourceOptions, default: Earliest | Latest, uncommitted: Earliest | Latest) -> StartSpec:
    time: AtTimestamp | None = options.starting_timestamp or options.starting_offsets_by_timestamp
    if time is not None:
        return replace(time, or_latest=options.starting_time_or_latest)
    if isinstance(options.starting_offsets, FromCommitted):
        return options.starting_offsets_fallback or FromCommitted(uncommitted)
    return options.starting_offsets or default


def _require_group(options: SourceOptions, why: str) -> None:
    if not options.group_id:
        raise OptionError(f"Option 'kafka.group.id' is missing: {why}.", "Set it with .option('kafka.group.id', ...).")
