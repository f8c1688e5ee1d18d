"""The option table: one row for each option. ``docs/contributing.md`` lists what a new option changes.

Options that Spark's own Kafka source also has keep their names and meanings; ``kafka.*`` names come from Kafka's Java
client. Names are case-insensitive, as in all Spark sources. The class of each part holds the defaults.

``kafka.sasl.username`` and ``kafka.sasl.password`` come from librdkafka: Spark redacts options with "password" in their
names, but not Java's JAAS config. ``python -m tests.unit.test_option_docs`` writes the descriptions into the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING
from typing import Any

from spark_group_source.auth.jaas import parse_jaas
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.endpoint_url import endpoint_url
from spark_group_source.auth.oauth.oauth_options import (
    buffer,
    jwt_retriever,
    jwt_validator,
    min_period,
    non_blank_secret,
    window_factor,
    window_jitter,
)
from spark_group_source.auth.oauth.token import RefreshWindow
from spark_group_source.auth.sasl_options import client_callback_handler, login_callback_handler, mechanism, protocol
from spark_group_source.auth.security_options import SecurityOptions
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_options import TLS_OPTIONS
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.option import Option, non_blank, secret
from spark_group_source.options.offset_parsers import (
    parse_end,
    parse_fallback,
    parse_start,
    parse_timestamp_strategy,
    timestamp_parser,
    timestamps_parser,
)
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.options.values import (
    assignor_names,
    boolean,
    byte_count,
    byte_size,
    byte_string,
    client_id,
    dns_lookup,
    duration,
    group_protocol,
    host_ports,
    idle_time,
    importable_function,
    instance_id,
    interval,
    isolation_level,
    long_milliseconds,
    long_wait,
    milliseconds,
    optional_wire_name,
    partitions_json,
    port_range,
    positive_count,
    positive_interval,
    retry_count,
    skip_repeat_or_fail,
    socket_buffer_size,
    topic_names,
    topic_pattern,
    wait,
    warn_or_fail,
    wire_name,
)
from spark_group_source.options.without_effect import OptionsWithoutEffect
from spark_group_source.wire.wire_options import WireOptions

PARTS: dict[str, type[Any]] = {
    "": SourceOptions,
    "wire": WireOptions,
    "group": GroupSettings,
    "group.subscription": Subscription,
    "fetch": FetchSettings,
    "tls": Tls,
    "oauth": ClientCredentials,
    "oauth.window": RefreshWindow,
    "security": SecurityOptions,
    "without_effect": OptionsWithoutEffect,
}
"""The parts of the settings. ``tls``, ``oauth`` and ``security`` become ``wire.tls`` and ``wire.sasl``; no code reads
``without_effect``."""

# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option("kafka.bootstrap.servers", "wire.bootstrap_servers", host_ports,
           "Brokers for the first connection: host:port,host:port.", required=True),
    Option("kafka.group.id", "group.group_id", wire_name,
           "Consumer group that the query joins."),
    Option("subscribe", "group.subscription.topics", topic_names,
           "Topics to read, separated by commas."),
    Option("subscribePattern", "group.subscription.pattern", topic_pattern,
           "Regular expression; the source reads every topic whose name contains a match."),
    Option("assign", "group.subscription.partitions", partitions_json,
           'Partitions to read without group membership: `{"orders": [0, 1]}`.'),
    Option("includeInternalTopics", "group.subscription.internal", boolean,
           "Whether subscribePattern also matches Kafka's internal topics."),
    Option("startingOffsets", "starting_offsets", parse_start,
           "Start position: earliest, latest, committed or JSON offsets. See Positions."),
    Option("startingOffsetsFallback", "starting_offsets_fallback", parse_fallback,
           "Start of partitions without a committed offset: earliest, latest or fail."),
    Option("startingOffsetsByTimestamp", "starting_offsets_by_timestamp",
           timestamps_parser("startingOffsetsByTimestamp"),
           "Start time of each partition as JSON, in ms since 1970. Takes precedence over startingOffsets."),
    Option("startingTimestamp", "starting_timestamp", timestamp_parser("startingTimestamp"),
           "Start time of all partitions in ms since 1970. Takes precedence over startingOffsetsByTimestamp."),
    Option("startingOffsetsByTimestampStrategy", "starting_time_or_latest", parse_timestamp_strategy,
           "If no record is at or after the start time: error fails the query, latest starts at the end."),
    Option("endingOffsets", "ending_offsets", parse_end,
           "End of a batch query: latest or JSON offsets."),
    Option("endingOffsetsByTimestamp", "ending_offsets_by_timestamp",
           timestamps_parser("endingOffsetsByTimestamp", or_latest=True),
           "End time of each partition as JSON, in ms since 1970. Takes precedence over endingOffsets."),
    Option("endingTimestamp", "ending_timestamp", timestamp_parser("endingTimestamp", or_latest=True),
           "End time of all partitions in ms since 1970. Takes precedence over endingOffsetsByTimestamp."),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", positive_count,
           "Maximum number of offsets in a micro-batch.", stream_only=True),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", byte_string,
           "Maximum bytes of stored records in a micro-batch, estimated: a number or 10g, 512m, 64kb.",
           stream_only=True),
    Option("targetBatchDuration", "target_batch_duration", positive_interval,
           "How long a micro-batch should take, with a unit: 30s, 2 minutes. The source adapts how much it reads.",
           stream_only=True),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", positive_count,
           "Minimum number of new offsets for a micro-batch.", stream_only=True),
    Option("maxTriggerDelay", "max_trigger_delay", duration,
           "How long minOffsetsPerTrigger may delay a micro-batch: 15m, 90s, or ms without a unit.",
           stream_only=True),
    Option("availableNowTimeout", "available_now_timeout", duration,
           "How long an AvailableNow run waits for other members without progress: 1h, 90m.", stream_only=True),
    Option("minBatchInterval", "min_batch_interval", interval,
           "Minimum time between the starts of micro-batches, with the default trigger: 10 minutes, 30s.",
           stream_only=True),
    Option("resetOffsetsOnStart", "reset_offsets_on_start", boolean,
           "Whether a new checkpoint starts at startingOffsets and ignores committed offsets.", stream_only=True),
    Option("startingOffsetsCallback", "starting_offsets_callback", importable_function,
           "Function that may change start positions, as module:function.", stream_only=True),
    Option("restoredCheckpoint", "restored_checkpoint", skip_repeat_or_fail,
           "If the checkpoint lacks committed batches: skip them, repeat them, or fail.", stream_only=True),
    Option("offsetCommit.timeoutMs", "commit_timeout", milliseconds,
           "How long a commit may take, in ms.", stream_only=True),
    Option("offsetCommit.numRetries", "commit_retries", retry_count,
           "Maximum number of retries of a commit before onCommitFailure=fail ends the query.", stream_only=True),
    Option("offsetCommit.retryIntervalMs", "commit_retry_interval", milliseconds,
           "How long the source waits before it retries a commit, in ms.", stream_only=True),
    Option("groupOffsetFetch.timeoutMs", "group.offset_fetch_timeout", milliseconds,
           "How long the source waits for the group's committed offsets, in ms."),
    Option("onCommitFailure", "on_commit_failure", warn_or_fail,
           "After the last commit retry: warn continues to retry, fail ends the query.", stream_only=True),
    Option("commitMetadata", "commit_metadata", boolean,
           "Whether commit metadata contains the application, client, member and number of batches.", stream_only=True),
    Option("includeHeaders", "include_headers", boolean,
           "Whether rows contain the records' headers."),
    Option("failOnDataLoss", "fetch.fail_on_data_loss", boolean,
           "Whether lost records end the query; with false the source logs a warning and continues."),
    Option("kafka.client.id", "wire.client_id", client_id,
           "Name of this query in Kafka's tools, logs and quotas."),
    Option("kafka.group.instance.id", "group.instance_id", instance_id,
           "Makes the query a static member, which keeps its partitions over a restart.", stream_only=True),
    Option("leaveGroupOnStop", "group.static_leaves", boolean,
           "Whether a static member leaves its group when the query stops.", stream_only=True),
    Option("kafka.group.protocol", "group.consumer_protocol", group_protocol,
           "Group protocol of the member: classic, or consumer (KIP-848; needs Kafka 4.0 or later).", stream_only=True),
    Option("kafka.group.remote.assignor", "group.remote_assignor", wire_name,
           "Assignor of the brokers, with the protocol consumer: uniform, range or their own.", stream_only=True),
    Option("kafka.partition.assignment.strategy", "group.assignors", assignor_names,
           "Assignors in order of preference: names, Java class names or module:Class.", stream_only=True),
    Option("kafka.session.timeout.ms", "group.session_timeout", milliseconds,
           "How long without a heartbeat before the broker removes the member, in ms.", stream_only=True),
    Option("kafka.heartbeat.interval.ms", "group.heartbeat_interval", milliseconds,
           "Time between heartbeats, in ms.", stream_only=True),
    Option("kafka.max.poll.interval.ms", "group.rebalance_timeout", milliseconds,
           "How long a rebalance waits for this member to revoke partitions and join, in ms.", stream_only=True),
    Option("kafka.request.timeout.ms", "wire.request_timeout", milliseconds,
           "How long a client waits for a broker response, in ms."),
    Option("kafka.retry.backoff.ms", "wire.retry_backoff", long_wait,
           "Backoff before the first retry, in ms; it doubles with each retry."),
    Option("kafka.retry.backoff.max.ms", "wire.retry_backoff_max", long_wait,
           "Maximum backoff before a retry, in ms."),
    Option("kafka.reconnect.backoff.ms", "wire.reconnect_backoff", long_wait,
           "Backoff before the first reconnect, in ms; it doubles with each failure."),
    Option("kafka.reconnect.backoff.max.ms", "wire.reconnect_backoff_max", long_wait,
           "Maximum backoff before a reconnect, in ms."),
    Option("kafka.socket.connection.setup.timeout.ms", "wire.connect_timeout", long_milliseconds,
           "Timeout of a connection attempt, in ms; it doubles with each failure."),
    Option("kafka.socket.connection.setup.timeout.max.ms", "wire.connect_timeout_max", long_milliseconds,
           "Maximum timeout of a connection attempt, in ms."),
    Option("kafka.connections.max.idle.ms", "wire.max_idle", idle_time,
           "How long a connection may be idle before it is replaced, in ms."),
    Option("kafka.client.dns.lookup", "wire.canonical_bootstrap", dns_lookup,
           "use_all_dns_ips or resolve_canonical_bootstrap_servers_only."),
    Option("kafka.receive.buffer.bytes", "wire.receive_buffer", socket_buffer_size,
           "Size of the socket receive buffer in bytes; with -1 the system chooses it."),
    Option("kafka.send.buffer.bytes", "wire.send_buffer", socket_buffer_size,
           "Size of the socket send buffer in bytes; with -1 the system chooses it."),
    Option("kafka.source.host", "wire.source_host", non_blank,
           "Local address of connections, on the driver and the executors."),
    Option("kafka.source.port", "wire.source_ports", port_range,
           "Local port range of connections: first-last."),
    Option("kafka.client.rack", "wire.rack", optional_wire_name,
           "Rack of the driver and the executors; the source reads from a replica in this rack."),
    Option("kafka.metadata.max.age.ms", "wire.metadata_max_age", long_wait,
           "Maximum age of cached metadata, in ms."),
    Option("kafka.isolation.level", "fetch.read_committed", isolation_level,
           "read_committed omits the records of aborted and open transactions."),
    Option("kafka.check.crcs", "fetch.check_crcs", boolean,
           "Whether the source checks the CRC of every record batch."),
    Option("minPartitions", "min_partitions", positive_count,
           "Minimum number of tasks of a batch; the source splits large ranges to reach it."),
    Option("maxRecordsPerPartition", "max_records_per_partition", positive_count,
           "Maximum number of offsets in a task; the source splits larger ranges."),
    Option("minRecordsPerTask", "min_records_per_task", positive_count,
           "Minimum number of offsets in a task; smaller ranges share a task. With 1, each range has its own task."),
    Option("kafka.fetch.max.bytes", "fetch.fetch_max_bytes", byte_size,
           "Maximum size of a fetch in bytes; it limits the memory of a task."),
    Option("kafka.fetch.min.bytes", "fetch.min_bytes", byte_count,
           "Minimum size of a fetch in bytes; a broker waits for it up to kafka.fetch.max.wait.ms."),
    Option("kafka.max.partition.fetch.bytes", "fetch.max_partition_fetch_bytes", byte_size,
           "Maximum size of one partition's part of a fetch, in bytes."),
    Option("kafka.fetch.max.wait.ms", "fetch.max_wait", wait,
           "How long a broker may delay a fetch, in ms."),
    Option("kafkaConsumer.pollTimeoutMs", "fetch.poll_timeout", long_milliseconds,
           "How long a task may make no progress before it fails, in ms."),
    Option("kafka.security.protocol", "security.protocol", protocol,
           "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    Option("kafka.sasl.mechanism", "security.mechanism", mechanism,
           "SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM or GSSAPI."),
    Option("kafka.sasl.username", "security.username", non_blank,
           "User name for PLAIN and SCRAM."),
    Option("kafka.sasl.password", "security.password", secret,
           "Password for PLAIN and SCRAM.", secret=True),
    Option("kafka.sasl.jaas.config", "security.jaas", parse_jaas,
           "Java's JAAS config: user name and password, an OAuth client, or settings of the IAMLoginModule.",
           secret=True),
    # The next two are secret, because users may write a token, or a URL with a password.
    Option("kafka.sasl.oauthbearer.token.provider", "security.token_provider", importable_function,
           "Function that returns OAUTHBEARER tokens: module:function.", secret=True),
    Option("kafka.sasl.oauthbearer.token.endpoint.url", "oauth.endpoint", endpoint_url,
           "URL of the OAuth token endpoint, or of a file with a token.", secret=True),
    Option("kafka.sasl.oauthbearer.client.credentials.client.id", "oauth.client_id", non_blank,
           "Id of the OAuth client."),
    Option("kafka.sasl.oauthbearer.client.credentials.client.secret", "oauth.client_secret", non_blank_secret,
           "Secret of the OAuth client.", secret=True),
    Option("kafka.sasl.oauthbearer.scope", "oauth.scope", non_blank,
           "Scope to request for the token."),
    Option("kafka.sasl.oauthbearer.header.urlencode", "oauth.encode_header", boolean,
           "Whether the request percent-encodes id and secret, as RFC 6749 requires."),
    Option("kafka.sasl.oauthbearer.jwt.retriever.class", "security.jwt_retriever", jwt_retriever,
           "Java's class that gets tokens: the default, client credentials or file retriever. Not needed."),
    Option("kafka.sasl.oauthbearer.jwt.validator.class", "without_effect.jwt_validator", jwt_validator,
           "Java's class that validates tokens: the default or client validator. No effect."),
    Option("kafka.sasl.login.connect.timeout.ms", "oauth.connect_timeout", milliseconds,
           "How long the source waits for a connection to the token endpoint, in ms."),
    Option("kafka.sasl.login.read.timeout.ms", "oauth.read_timeout", milliseconds,
           "How long the source waits for the token endpoint's response, in ms."),
    Option("kafka.sasl.login.retry.backoff.ms", "oauth.retry_backoff", long_wait,
           "Backoff after a failed token request, in ms; it doubles with each failure."),
    Option("kafka.sasl.login.retry.backoff.max.ms", "oauth.retry_backoff_max", long_wait,
           "Maximum backoff after a failed token request, in ms."),
    Option("kafka.sasl.login.refresh.window.factor", "oauth.window.factor", window_factor,
           "Fraction of a token's lifetime after which the source refreshes it (0.5 to 1)."),
    Option("kafka.sasl.login.refresh.window.jitter", "oauth.window.jitter", window_jitter,
           "Maximum random delay of a refresh, as a fraction of the token's lifetime (0 to 0.25)."),
    Option("kafka.sasl.login.refresh.min.period.seconds", "oauth.window.min_period", min_period,
           "Minimum time between two refreshes, in s, if the token's lifetime allows."),
    Option("kafka.sasl.login.refresh.buffer.seconds", "oauth.window.buffer", buffer,
           "Minimum time between a refresh and the token's end, in s, if the token's lifetime allows."),
    Option("kafka.sasl.oauthbearer.sub.claim.name", "oauth.subject_claim", non_blank,
           "Claim of the token that the log shows as its principal."),
    Option("kafka.sasl.oauthbearer.scope.claim.name", "oauth.scope_claim", non_blank,
           "Claim of the token that the log shows as its scope."),
    Option("kafka.sasl.login.callback.handler.class", "security.login_handler", login_callback_handler,
           "Java's class that provides tokens: OAuthBearerLoginCallbackHandler (not needed), or"
           " IAMOAuthBearerLoginCallbackHandler."),
    Option("kafka.sasl.client.callback.handler.class", "without_effect.client_handler", client_callback_handler,
           "Java's class for the client's side of AWS_MSK_IAM. No effect."),
    Option("kafka.sasl.kerberos.service.name", "security.kerberos_service", non_blank,
           "Kerberos service name of the brokers, for GSSAPI."),
    *TLS_OPTIONS,
)
# fmt: on


def default_of(place: str) -> Any:
    """The default of an option with this place; ``None`` if it has none."""
    part, _, field = place.rpartition(".")
    default = PARTS[part].__dataclass_fields__[field].default
    return None if default is MISSING else default


def ignored_in_batch_queries(given: Iterable[str]) -> list[str]:
    """The options among ``given`` that a batch query ignores."""
    lower = {name.lower() for name in given}
    return [option.name for option in OPTIONS if option.stream_only and option.name.lower() in lower]
