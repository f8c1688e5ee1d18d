"""The option table: every name, default and meaning.

Names and meanings are those of Spark's own Kafka source wherever it has the option; ``kafka.*`` names are
those of Kafka's Java client. Names are case-insensitive, as Spark makes all options of a source.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from spark_group_source.group.classic.assignors import parse_assignors
from spark_group_source.offsets import TopicPartition
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    EndSpec,
    FromCommitted,
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
from spark_group_source.options.value_parsers import (
    boolean,
    byte_count,
    byte_size,
    dns_lookup,
    duration,
    host_ports,
    importable_function,
    instance_id,
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
    """All options, checked. Times are in seconds, sizes in bytes."""

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
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    reset_offsets_on_start: bool = False
    rebalance_callback: str | None = None
    commit_timeout: float = 5.0
    commit_retries: int = 5
    commit_retry_interval: float = 1.0
    offset_fetch_timeout: float = 5.0
    on_commit_failure: str = "warn"
    commit_metadata: bool = False
    include_headers: bool = False
    fail_on_data_loss: bool = True
    client_id: str = ""
    group_instance_id: str | None = None
    leave_on_stop: bool = False
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
    Option("kafka.bootstrap.servers", "bootstrap_servers", host_ports, "Brokers to start from.", required=True),
    Option("kafka.group.id", "group_id", non_blank, "The consumer group to be a member of."),
    Option("subscribe", "topics", topic_names, "Topics to read, separated by commas; or one of the next two."),
    Option(
        "subscribePattern", "topic_pattern", topic_pattern, "Regular expression found in the names of topics to read."
    ),
    Option("assign", "partitions", partitions_json, 'Just these partitions, without membership: `{"orders": [0, 1]}`.'),
    Option(
        "includeInternalTopics", "include_internal_topics", boolean, "subscribePattern finds Kafka's own topics too."
    ),
    Option("startingOffsets", "starting_offsets", parse_start, "earliest, latest, committed or JSON: see Positions."),
    Option(
        "startingOffsetsFallback",
        "starting_offsets_fallback",
        parse_fallback,
        "With startingOffsets=committed: latest, earliest or fail.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "starting_offsets_by_timestamp",
        timestamps_parser("startingOffsetsByTimestamp"),
        "JSON with a time for each partition; goes before startingOffsets.",
    ),
    Option(
        "startingTimestamp",
        "starting_timestamp",
        timestamp_parser("startingTimestamp"),
        "Start of all partitions, in ms since 1970; goes before both of these.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "starting_time_or_latest",
        parse_timestamp_strategy,
        "Where no record is as late: error, or latest, the end of the log.",
    ),
    Option("endingOffsets", "ending_offsets", parse_end, "End of a bounded read: latest or JSON."),
    Option(
        "endingOffsetsByTimestamp",
        "ending_offsets_by_timestamp",
        timestamps_parser("endingOffsetsByTimestamp", or_latest=True),
        "JSON with a time for each partition; goes before endingOffsets.",
    ),
    Option(
        "endingTimestamp",
        "ending_timestamp",
        timestamp_parser("endingTimestamp", or_latest=True),
        "End of all partitions, in ms since 1970; goes before both of these.",
    ),
    Option(
        "maxOffsetsPerTrigger", "max_offsets_per_trigger", positive_count, "Most offsets that a micro-batch covers."
    ),
    Option(
        "minOffsetsPerTrigger", "min_offsets_per_trigger", positive_count, "Fewest new offsets that make a micro-batch."
    ),
    Option("maxTriggerDelay", "max_trigger_delay", duration, "Longest that minOffsetsPerTrigger holds records back."),
    Option("resetOffsetsOnStart", "reset_offsets_on_start", boolean, "A new checkpoint starts at startingOffsets."),
    Option(
        "rebalanceCallback",
        "rebalance_callback",
        importable_function,
        "module:function that may move start positions, and returns well within a session.",
    ),
    Option("groupCommit.timeoutMs", "commit_timeout", milliseconds, "Longest that a batch waits for a commit."),
    Option(
        "groupCommit.numRetries", "commit_retries", retry_count, "Failed tries in a row before onCommitFailure=fail."
    ),
    Option(
        "groupCommit.retryIntervalMs", "commit_retry_interval", milliseconds, "Time until a failed try is repeated."
    ),
    Option("groupOffsetFetch.timeoutMs", "offset_fetch_timeout", milliseconds, "Longest wait for the group's offsets."),
    Option(
        "onCommitFailure", "on_commit_failure", warn_or_fail, "warn: tries go on; fail: the query fails after them."
    ),
    Option(
        "commitMetadata", "commit_metadata", boolean, "Commits tell application, client, member and batches so far."
    ),
    Option("includeHeaders", "include_headers", boolean, "Adds the column headers."),
    Option("failOnDataLoss", "fail_on_data_loss", boolean, "Fail, or warn and go on, where records are gone."),
    Option("kafka.client.id", "client_id", non_blank, "Name of this query in Kafka's tools, logs and quotas."),
    Option("kafka.group.instance.id", "group_instance_id", instance_id, "Makes the member static: restarts keep it."),
    Option("leaveGroupOnStop", "leave_on_stop", boolean, "A static member leaves its group when the query stops, too."),
    Option(
        "kafka.partition.assignment.strategy",
        "assignors",
        parse_assignors,
        "Assignors by preference: names, Java classes, module:Class.",
    ),
    Option("kafka.session.timeout.ms", "session_timeout", milliseconds, "Silence after which a member is dead."),
    Option("kafka.heartbeat.interval.ms", "heartbeat_interval", milliseconds, "Time between heartbeats; see above."),
    Option("kafka.max.poll.interval.ms", "max_poll_interval", milliseconds, "Longest hand-over of partitions."),
    Option("kafka.request.timeout.ms", "request_timeout", milliseconds, "Longest wait for one answer."),
    Option("kafka.retry.backoff.ms", "retry_backoff", milliseconds, "First pause before another try; it doubles."),
    Option("kafka.retry.backoff.max.ms", "retry_backoff_max", milliseconds, "Longest pause before another try."),
    Option(
        "kafka.reconnect.backoff.ms",
        "reconnect_backoff",
        milliseconds,
        "Pause before a broker that cannot be reached is tried again; it doubles.",
    ),
    Option("kafka.reconnect.backoff.max.ms", "reconnect_backoff_max", milliseconds, "Longest such pause."),
    Option(
        "kafka.socket.connection.setup.timeout.ms",
        "connect_timeout",
        milliseconds,
        "Longest wait for a connection; it doubles with each failure.",
    ),
    Option("kafka.socket.connection.setup.timeout.max.ms", "connect_timeout_max", milliseconds, "Longest such wait."),
    Option(
        "kafka.connections.max.idle.ms",
        "connections_max_idle",
        milliseconds,
        "Connections unused for longer are not used again.",
    ),
    Option(
        "kafka.client.dns.lookup",
        "canonical_bootstrap",
        dns_lookup,
        "resolve_canonical_bootstrap_servers_only: by the names of their addresses.",
    ),
    Option(
        "kafka.receive.buffer.bytes",
        "receive_buffer",
        socket_buffer_size,
        "Size of a socket's receive buffer; -1: as the system has it.",
    ),
    Option(
        "kafka.send.buffer.bytes",
        "send_buffer",
        socket_buffer_size,
        "Size of a socket's send buffer; -1: as the system has it.",
    ),
    Option("kafka.source.host", "source_host", non_blank, "Local address of connections, on driver and executors."),
    Option("kafka.source.port", "source_ports", port_range, "Local ports of connections: first-last."),
    Option("kafka.client.rack", "rack", non_blank, "Where this query runs: the replica in the same rack is read."),
    Option("kafka.metadata.max.age.ms", "metadata_max_age", milliseconds, "Age at which metadata is asked anew."),
    Option("kafka.isolation.level", "read_committed", isolation_level, "read_committed hides aborted transactions."),
    Option("kafka.check.crcs", "check_crcs", boolean, "Check the CRC of every record batch."),
    Option("minPartitions", "min_partitions", positive_count, "Least number of tasks: larger ranges are split for it."),
    Option(
        "maxRecordsPerPartition", "max_records_per_partition", positive_count, "Most offsets of a task; more are split."
    ),
    Option(
        "minRecordsPerTask", "min_records_per_task", positive_count, "Ranges of fewer offsets share a task; 1: none do."
    ),
    Option("kafka.fetch.max.bytes", "fetch_max_bytes", byte_size, "Size of a fetch: bounds the memory of a task."),
    Option(
        "kafka.fetch.min.bytes",
        "fetch_min_bytes",
        byte_count,
        "Bytes that a broker waits for, up to the longest wait.",
    ),
    Option(
        "kafka.max.partition.fetch.bytes",
        "max_partition_fetch_bytes",
        byte_size,
        "Part of a fetch that one partition may take; all of it by default.",
    ),
    Option("kafka.fetch.max.wait.ms", "fetch_max_wait", milliseconds, "Longest that a broker holds a fetch back."),
    Option("kafkaConsumer.pollTimeoutMs", "poll_timeout", milliseconds, "Longest that a task goes without progress."),
    *SECURITY_OPTIONS,
)
"""The option table. Defaults stand in :class:`SourceOptions`."""


def defaults() -> dict[str, Any]:
    """Public option name -> default value, for the options that have one."""
    by_field = {each.name: each.default for each in fields(SourceOptions)}
    return {option.name: by_field[option.field] for option in OPTIONS if not option.required}
