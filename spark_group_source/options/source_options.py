"""The parsed options: the settings of a query, in the parts that use them.

Some options have another meaning in a batch query, or none. Spark creates the source before it asks for a stream or a
batch reader, so the reader calls :func:`check_stream` or :func:`check_batch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_group_source.errors import OptionError
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    EndSpec,
    FromCommitted,
    Latest,
    SpecificOffsets,
    StartSpec,
    word,
)

if TYPE_CHECKING:
    from spark_group_source.group.settings import GroupSettings
    from spark_group_source.wire.wire_options import WireOptions


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options after parsing and checks. Times are in seconds, sizes in bytes.

    Each field holds the option with the place ``<field>`` in ``options/table.py``, and its default. ``group``, its
    ``wire`` and ``fetch`` hold the options that the member, the connections and the tasks use.
    """

    group: GroupSettings
    fetch: FetchSettings = field(default_factory=FetchSettings)
    starting_offsets: StartSpec | None = None
    starting_offsets_fallback: FromCommitted | None = None
    starting_offsets_by_timestamp: AtTimestamp | None = None
    starting_timestamp: AtTimestamp | None = None
    starting_time_or_latest: bool = False
    ending_offsets: EndSpec | None = None
    ending_offsets_by_timestamp: AtTimestamp | None = None
    ending_timestamp: AtTimestamp | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    target_batch_duration: float | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    available_now_timeout: float | None = None
    min_batch_interval: float | None = None
    reset_offsets_on_start: bool = False
    starting_offsets_callback: str | None = None
    restored_checkpoint: str = "skip"
    commit_timeout: float = 5.0
    commit_retries: int = 5
    commit_retry_interval: float = 1.0
    on_commit_failure: str = "warn"
    commit_metadata: bool = False
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_task: int = 10_000

    @property
    def wire(self) -> WireOptions:
        """The settings of connections."""
        return self.group.wire

    def with_client_id(self, client_id: str) -> SourceOptions:
        """Returns these options with another client id, which names the query in Kafka's tools."""
        wire = replace(self.wire, client_id=client_id)
        return replace(self, group=replace(self.group, wire=wire))


def check_stream(options: SourceOptions) -> None:
    """Checks the options of a stream.

    Raises:
        OptionError: the group id is missing, or an end is set.
    """
    _require_group(options, "a stream is a member of a consumer group")
    end = _given_end(options)
    if end is not None:
        option = "endingOffsets"
        if isinstance(end, AtTimestamp):
            option = end.option
        raise OptionError(
            f"Option '{option}' is set, but a stream has no end.",
            "Remove it. To stop at the current end offsets use .trigger(availableNow=True). To stop at an offset or"
            " time use spark.read.format('kafka-group').",
        )


def check_batch(options: SourceOptions) -> None:
    """Checks the options of a batch query.

    Raises:
        OptionError: it starts at latest or ends at earliest, or the group id is missing.
    """
    start, end = batch_start(options), batch_end(options)
    starts_at_latest = start == Latest()
    if isinstance(start, SpecificOffsets):
        starts_at_latest = Latest() in start.values
    if starts_at_latest:
        raise OptionError(
            "Option 'startingOffsets' is latest (-1): a batch query that starts there has no records.",
            "Set it to offsets, earliest (-2) or committed, or set a time with 'startingTimestamp'.",
        )
    if isinstance(end, SpecificOffsets) and Earliest() in end.values:
        raise OptionError(
            "Option 'endingOffsets' contains -2 (earliest): a batch query that ends there has no records.",
            "Set it to offsets, or to -1 for the end offset.",
        )
    if isinstance(start, FromCommitted):
        _require_group(options, "'startingOffsets' is committed")


def stream_start(options: SourceOptions) -> StartSpec:
    """The start of a stream in partitions without a committed offset."""
    return _start(options, Latest())


def start_is_given(options: SourceOptions) -> bool:
    """Whether the user has set an offset or time at which a stream starts. ``committed`` is none."""
    if start_time(options) is not None:
        return True
    return options.starting_offsets is not None and not isinstance(options.starting_offsets, FromCommitted)


def given_start(options: SourceOptions) -> str:
    """The options that the user has set for the start of a new checkpoint, for the log; empty if there are none."""
    given = []
    if start_is_given(options):
        given.append(start_setting(options))
    if options.reset_offsets_on_start:
        given.append("resetOffsetsOnStart")
    return " and ".join(given)


def start_setting(options: SourceOptions) -> str:
    """The option that decides :func:`stream_start`, for the log: with its value, unless that is JSON."""
    start = stream_start(options)
    if isinstance(start, AtTimestamp):
        if isinstance(start.timestamps, int):
            return f"{start.option}={start.timestamps}"
        return start.option
    if isinstance(start, SpecificOffsets):
        return start.option
    if isinstance(start, FromCommitted):
        fallback = "fail"
        if start.fallback is not None:
            fallback = word(start.fallback)
        return f"startingOffsetsFallback={fallback}"
    setting = f"startingOffsets={word(start)}"
    if start_is_given(options):
        return setting
    return f"{setting}, the default"


def batch_start(options: SourceOptions) -> StartSpec:
    """The start of a batch query.

    A group without a committed offset has processed nothing, so the read starts at earliest unless
    ``startingOffsetsFallback`` is set.
    """
    return _start(options, Earliest())


def batch_end(options: SourceOptions) -> EndSpec:
    """The end of a batch query."""
    end = _given_end(options)
    if end is None:
        return Latest()
    return end


def start_time(options: SourceOptions) -> AtTimestamp | None:
    """The start time that the user has set, for all partitions or for each; ``None`` without one."""
    if options.starting_timestamp is not None:
        return options.starting_timestamp
    return options.starting_offsets_by_timestamp


def _given_end(options: SourceOptions) -> EndSpec | None:
    """The end that the user has set. One time for all takes precedence over times, and times over offsets."""
    if options.ending_timestamp is not None:
        return options.ending_timestamp
    if options.ending_offsets_by_timestamp is not None:
        return options.ending_offsets_by_timestamp
    return options.ending_offsets


def _start(options: SourceOptions, default: Earliest | Latest) -> StartSpec:
    """The start that the user has set, or the default. A time takes precedence over offsets."""
    time = start_time(options)
    if time is not None:
        return replace(time, or_latest=options.starting_time_or_latest)
    if isinstance(options.starting_offsets, FromCommitted):
        if options.starting_offsets_fallback is None:
            return FromCommitted(default)
        return options.starting_offsets_fallback
    if options.starting_offsets is None:
        return default
    return options.starting_offsets


def _require_group(options: SourceOptions, why: str) -> None:
    if not options.group.group_id:
        raise OptionError(f"Option 'kafka.group.id' is missing: {why}.", "Set it with .option('kafka.group.id', ...).")
