"""The option table: the name, the field, the parser and the default of every option.

An option of Spark's own Kafka source has the same name and meaning here; ``kafka.*`` names come from Kafka's Java
client. Names are case-insensitive, as in all Spark sources.

Some options have another meaning in a batch query, or none. Spark creates the source before it asks for a stream or a
batch reader, so the reader makes these checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition
from spark_group_source.options.offsets import (
    AtTimestamp,
    Earliest,
    EndSpec,
    FromCommitted,
    Latest,
    SpecificOffsets,
    StartSpec,
    parse_end,
    parse_fallback,
    parse_start,
    parse_timestamp_strategy,
    timestamp_parser,
    timestamps_parser,
)
from spark_group_source.options.option import Option
from spark_group_source.options.security import SECURITY_OPTIONS, SecurityOptions
from spark_group_source.options.values import (
    assignor_names,
    boolean,
    byte_count,
    byte_size,
    byte_string,
    dns_lookup,
    duration,
    group_protocol,
    host_ports,
    importable_function,
    instance_id,
    interval,
    isolation_level,
    milliseconds,
    non_blank,
    partitions_json,
    port_range,
    positive_count,
    retry_count,
    socket_buffer_size,
    topic_names,
    topic_pattern,
    warn_or_fail,
)


@dataclass(frozen=True, slots=True)
class SourceOptions(SecurityOptions):
    """All options after parsing and checks. Times are in seconds, sizes in bytes."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    group_id: str = ""
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    include_internal_topics: bool = False
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
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    available_now_timeout: float | None = None
    min_batch_interval: float | None = None
    reset_offsets_on_start: bool = False
    starting_offsets_callback: str | None = None
    commit_timeout: float = 5.0
    commit_retries: int = 5
    commit_retry_interval: float = 1.0
    offset_fetch_timeout: float = 5.0
    on_commit_failure: str = "warn"
    commit_metadata: bool = False
    include_headers: bool = False
    push_down_filters: bool = False
    fail_on_data_loss: bool = True
    client_id: str = ""
    group_instance_id: str | None = None
    leave_on_stop: bool = False
    consumer_protocol: bool = False
    remote_assignor: str | None = None
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    request_timeout: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    connections_max_idle: float = 540.0
    canonical_bootstrap: bool = False
    receive_buffer: int = -1
    send_buffer: int = -1
    source_host: str | None = None
    source_ports: tuple[int, int] | None = None
    rack: str | None = None
    metadata_max_age: float = 300.0
    read_committed: bool = False
    check_crcs: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_task: int = 10_000
    fetch_max_bytes: int = 4 * 2**20
    fetch_min_bytes: int = 1
    max_partition_fetch_bytes: int | None = None
    fetch_max_wait: float = 0.5
    poll_timeout: float = 120.0


OPTIONS: tuple[Option, ...] = (
    Option("kafka.bootstrap.servers", "bootstrap_servers", host_ports, required=True),
    Option("kafka.group.id", "group_id", non_blank),
    Option("subscribe", "topics", topic_names),
    Option("subscribePattern", "topic_pattern", topic_pattern),
    Option("assign", "partitions", partitions_json),
    Option("includeInternalTopics", "include_internal_topics", boolean),
    Option("startingOffsets", "starting_offsets", parse_start),
    Option("startingOffsetsFallback", "starting_offsets_fallback", parse_fallback),
    Option(
        "startingOffsetsByTimestamp", "starting_offsets_by_timestamp", timestamps_parser("startingOffsetsByTimestamp")
    ),
    Option("startingTimestamp", "starting_timestamp", timestamp_parser("startingTimestamp")),
    Option("startingOffsetsByTimestampStrategy", "starting_time_or_latest", parse_timestamp_strategy),
    Option("endingOffsets", "ending_offsets", parse_end),
    Option(
        "endingOffsetsByTimestamp",
        "ending_offsets_by_timestamp",
        timestamps_parser("endingOffsetsByTimestamp", or_latest=True),
    ),
    Option("endingTimestamp", "ending_timestamp", timestamp_parser("endingTimestamp", or_latest=True)),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", positive_count),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", byte_string),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", positive_count),
    Option("maxTriggerDelay", "max_trigger_delay", duration),
    Option("availableNowTimeout", "available_now_timeout", duration),
    Option("minBatchInterval", "min_batch_interval", interval),
    Option("resetOffsetsOnStart", "reset_offsets_on_start", boolean),
    Option("startingOffsetsCallback", "starting_offsets_callback", importable_function),
    Option("offsetCommit.timeoutMs", "commit_timeout", milliseconds),
    Option("offsetCommit.numRetries", "commit_retries", retry_count),
    Option("offsetCommit.retryIntervalMs", "commit_retry_interval", milliseconds),
    Option("groupOffsetFetch.timeoutMs", "offset_fetch_timeout", milliseconds),
    Option("onCommitFailure", "on_commit_failure", warn_or_fail),
    Option("commitMetadata", "commit_metadata", boolean),
    Option("includeHeaders", "include_headers", boolean),
    Option("pushDownFilters", "push_down_filters", boolean),
    Option("failOnDataLoss", "fail_on_data_loss", boolean),
    Option("kafka.client.id", "client_id", non_blank),
    Option("kafka.group.instance.id", "group_instance_id", instance_id),
    Option("leaveGroupOnStop", "leave_on_stop", boolean),
    Option("kafka.group.protocol", "consumer_protocol", group_protocol),
    Option("kafka.group.remote.assignor", "remote_assignor", non_blank),
    Option("kafka.partition.assignment.strategy", "assignors", assignor_names),
    Option("kafka.session.timeout.ms", "session_timeout", milliseconds),
    Option("kafka.heartbeat.interval.ms", "heartbeat_interval", milliseconds),
    Option("kafka.max.poll.interval.ms", "max_poll_interval", milliseconds),
    Option("kafka.request.timeout.ms", "request_timeout", milliseconds),
    Option("kafka.retry.backoff.ms", "retry_backoff", milliseconds),
    Option("kafka.retry.backoff.max.ms", "retry_backoff_max", milliseconds),
    Option("kafka.reconnect.backoff.ms", "reconnect_backoff", milliseconds),
    Option("kafka.reconnect.backoff.max.ms", "reconnect_backoff_max", milliseconds),
    Option("kafka.socket.connection.setup.timeout.ms", "connect_timeout", milliseconds),
    Option("kafka.socket.connection.setup.timeout.max.ms", "connect_timeout_max", milliseconds),
    Option("kafka.connections.max.idle.ms", "connections_max_idle", milliseconds),
    Option("kafka.client.dns.lookup", "canonical_bootstrap", dns_lookup),
    Option("kafka.receive.buffer.bytes", "receive_buffer", socket_buffer_size),
    Option("kafka.send.buffer.bytes", "send_buffer", socket_buffer_size),
    Option("kafka.source.host", "source_host", non_blank),
    Option("kafka.source.port", "source_ports", port_range),
    Option("kafka.client.rack", "rack", non_blank),
    Option("kafka.metadata.max.age.ms", "metadata_max_age", milliseconds),
    Option("kafka.isolation.level", "read_committed", isolation_level),
    Option("kafka.check.crcs", "check_crcs", boolean),
    Option("minPartitions", "min_partitions", positive_count),
    Option("maxRecordsPerPartition", "max_records_per_partition", positive_count),
    Option("minRecordsPerTask", "min_records_per_task", positive_count),
    Option("kafka.fetch.max.bytes", "fetch_max_bytes", byte_size),
    Option("kafka.fetch.min.bytes", "fetch_min_bytes", byte_count),
    Option("kafka.max.partition.fetch.bytes", "max_partition_fetch_bytes", byte_size),
    Option("kafka.fetch.max.wait.ms", "fetch_max_wait", milliseconds),
    Option("kafkaConsumer.pollTimeoutMs", "poll_timeout", milliseconds),
    *SECURITY_OPTIONS,
)
"""The option table. :class:`SourceOptions` has the defaults."""


def defaults() -> dict[str, Any]:
    """Public option name -> default value, for all options that are not required."""
    by_field = {field.name: field.default for field in fields(SourceOptions)}
    return {option.name: by_field[option.field] for option in OPTIONS if not option.required}


STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "availableNowTimeout",
    "minBatchInterval",
    "resetOffsetsOnStart",
    "startingOffsetsCallback",
    "offsetCommit.timeoutMs",
    "offsetCommit.numRetries",
    "offsetCommit.retryIntervalMs",
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
"""Options that a batch query ignores with a warning: it has one batch and no member."""


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
    """Checks the options of a batch query.

    Raises:
        OptionError: it starts at latest or ends at earliest, or the group id is missing.
    """
    start, end = batch_start(options), batch_end(options)
    starts = [*start.offsets.values(), start.others] if isinstance(start, SpecificOffsets) else [start]
    if Latest() in starts:
        raise OptionError(
            "Option 'startingOffsets' is latest (-1), and a batch query from there has no records.",
            "Set it to offsets, earliest (-2) or committed, or set a time with 'startingTimestamp'.",
        )
    if isinstance(end, SpecificOffsets) and Earliest() in end.offsets.values():
        raise OptionError(
            "Option 'endingOffsets' contains -2 (earliest), and a batch query up to there has no records.",
            "Set it to offsets, or -1 for the end offset.",
        )
    if isinstance(start, FromCommitted):
        _require_group(options, "'startingOffsets' is committed")


def stream_start(options: SourceOptions) -> StartSpec:
    """The start of a stream in partitions without a committed offset."""
    return _start(options, Latest(), Latest())


def batch_start(options: SourceOptions) -> StartSpec:
    """The start of a batch query.

    A group without a committed offset has processed nothing, so the read starts at earliest unless
    ``startingOffsetsFallback`` is set.
    """
    return _start(options, Earliest(), Earliest())


def batch_end(options: SourceOptions) -> EndSpec:
    """The end of a batch query."""
    return options.ending_timestamp or options.ending_offsets_by_timestamp or options.ending_offsets or Latest()


def ignored_in_batch_queries(given: Iterable[str]) -> list[str]:
    """The options among ``given`` that a batch query ignores."""
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
