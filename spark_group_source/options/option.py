"""One row of the option table, and the description of each option.

Limits read "Maximum ...", "Minimum ..." or "How long ...", with the unit.
``python -m tests.unit.test_option_docs`` writes the descriptions into the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DESCRIPTIONS = {
    "kafka.bootstrap.servers": "Brokers for the first connection: host:port,host:port.",
    "kafka.group.id": "Consumer group that the query joins.",
    "subscribe": "Topics to read, separated by commas.",
    "subscribePattern": "Regular expression; the source reads every topic whose name contains a match.",
    "assign": 'Partitions to read without group membership: `{"orders": [0, 1]}`.',
    "includeInternalTopics": "Whether subscribePattern also matches Kafka's internal topics.",
    "startingOffsets": "Start position: earliest, latest, committed or JSON offsets. See Positions.",
    "startingOffsetsFallback": "Start of partitions without a committed offset: earliest, latest or fail.",
    "startingOffsetsByTimestamp": "JSON start times in ms since 1970. Takes precedence over startingOffsets.",
    "startingTimestamp": "Start time in ms since 1970. Takes precedence over startingOffsetsByTimestamp.",
    "startingOffsetsByTimestampStrategy": (
        "If no record is at or after the start time: error fails the query, latest starts at the end."
    ),
    "endingOffsets": "End of a batch query: latest or JSON offsets.",
    "endingOffsetsByTimestamp": "JSON end times in ms since 1970. Takes precedence over endingOffsets.",
    "endingTimestamp": "End time in ms since 1970. Takes precedence over endingOffsetsByTimestamp.",
    "maxOffsetsPerTrigger": "Maximum number of offsets in a micro-batch.",
    "maxBytesPerTrigger": "Maximum bytes of stored records in a micro-batch, estimated: a number or 10g, 512m, 64kb.",
    "minOffsetsPerTrigger": "Minimum number of new offsets for a micro-batch.",
    "availableNowTimeout": "How long an AvailableNow run waits for other members without progress: 1h, 90m.",
    "maxTriggerDelay": "How long minOffsetsPerTrigger may delay a micro-batch: a number with a unit (ms, s, m, h, d).",
    "minBatchInterval": "Minimum time between the starts of micro-batches, with the default trigger: 10 minutes, 30s.",
    "resetOffsetsOnStart": "Whether a new checkpoint starts at startingOffsets and ignores committed offsets.",
    "startingOffsetsCallback": "Function that may change start positions, as module:function.",
    "offsetCommit.timeoutMs": "How long a micro-batch waits for a commit, in ms.",
    "offsetCommit.numRetries": "Maximum number of retries of a commit before onCommitFailure=fail ends the query.",
    "offsetCommit.retryIntervalMs": "How long the source waits before it retries a commit, in ms.",
    "groupOffsetFetch.timeoutMs": "How long the source waits for the group's committed offsets, in ms.",
    "onCommitFailure": "After the last commit retry: warn continues to retry, fail ends the query.",
    "commitMetadata": "Whether commit metadata contains the application, client, member and number of batches.",
    "includeHeaders": "Whether rows have the column headers.",
    "pushDownFilters": "Whether filters on partition, offset, timestamp and topic narrow a batch query. See Positions.",
    "failOnDataLoss": "Whether lost records end the query; with false the source logs a warning and continues.",
    "kafka.client.id": "Name of this query in Kafka's tools, logs and quotas.",
    "kafka.group.instance.id": "Makes the query a static member, which keeps its partitions over a restart.",
    "leaveGroupOnStop": "Whether a static member leaves its group when the query stops.",
    "kafka.group.protocol": "Group protocol of the member: classic, or consumer (KIP-848; needs Kafka 4.0 or later).",
    "kafka.group.remote.assignor": "Assignor of the brokers, with the protocol consumer: uniform, range or their own.",
    "kafka.partition.assignment.strategy": "Assignors in order of preference: names, Java class names or module:Class.",
    "kafka.session.timeout.ms": "How long without a heartbeat before the broker removes the member, in ms.",
    "kafka.heartbeat.interval.ms": "Time between heartbeats, in ms.",
    "kafka.max.poll.interval.ms": "How long a rebalance waits for this member to revoke partitions and join, in ms.",
    "kafka.request.timeout.ms": "How long a client waits for a broker response, in ms.",
    "kafka.retry.backoff.ms": "Backoff before the first retry, in ms; it doubles with each retry.",
    "kafka.retry.backoff.max.ms": "Maximum backoff before a retry, in ms.",
    "kafka.reconnect.backoff.ms": "Backoff before the first reconnect, in ms; it doubles with each failure.",
    "kafka.reconnect.backoff.max.ms": "Maximum backoff before a reconnect, in ms.",
    "kafka.socket.connection.setup.timeout.ms": "Timeout of a connection attempt, in ms; it doubles with each failure.",
    "kafka.socket.connection.setup.timeout.max.ms": "Maximum timeout of a connection attempt, in ms.",
    "kafka.connections.max.idle.ms": "How long a connection may be idle before it is replaced, in ms.",
    "kafka.client.dns.lookup": "use_all_dns_ips or resolve_canonical_bootstrap_servers_only.",
    "kafka.receive.buffer.bytes": "Size of the socket receive buffer in bytes; with -1 the system chooses it.",
    "kafka.send.buffer.bytes": "Size of the socket send buffer in bytes; with -1 the system chooses it.",
    "kafka.source.host": "Local address of connections, on the driver and the executors.",
    "kafka.source.port": "Local port range of connections: first-last.",
    "kafka.client.rack": "Rack of the driver and the executors; the source reads from a replica in this rack.",
    "kafka.metadata.max.age.ms": "Maximum age of cached metadata, in ms.",
    "kafka.isolation.level": "read_committed omits the records of aborted and open transactions.",
    "kafka.check.crcs": "Whether the source checks the CRC of every record batch.",
    "minPartitions": "Minimum number of tasks of a batch; the source splits large ranges to reach it.",
    "maxRecordsPerPartition": "Maximum number of offsets in a task; the source splits larger ranges.",
    "minRecordsPerTask": "Minimum number of offsets in a task; smaller ranges share a task. With 1 no ranges do.",
    "kafka.fetch.max.bytes": "Maximum size of a fetch in bytes; it limits the memory of a task.",
    "kafka.fetch.min.bytes": "Minimum size of a fetch in bytes; a broker waits for it up to kafka.fetch.max.wait.ms.",
    "kafka.max.partition.fetch.bytes": "Maximum part of a fetch for one partition, in bytes.",
    "kafka.fetch.max.wait.ms": "How long a broker may delay a fetch, in ms.",
    "kafkaConsumer.pollTimeoutMs": "How long a task may make no progress before it fails, in ms.",
    "kafka.security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    "kafka.sasl.mechanism": "SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM or GSSAPI.",
    "kafka.sasl.username": "User name for PLAIN and SCRAM.",
    "kafka.sasl.password": "Password for PLAIN and SCRAM.",
    "kafka.sasl.jaas.config": "Java's JAAS config: user name and password, an OAuth client, or settings of the"
    " IAMLoginModule.",
    "kafka.sasl.oauthbearer.token.provider": "Function that returns OAUTHBEARER tokens: module:function.",
    "kafka.sasl.oauthbearer.token.endpoint.url": "URL of the OAuth token endpoint, or of a file with a token.",
    "kafka.sasl.oauthbearer.client.credentials.client.id": "Id of the OAuth client.",
    "kafka.sasl.oauthbearer.client.credentials.client.secret": "Secret of the OAuth client.",
    "kafka.sasl.oauthbearer.scope": "Scope to request for the token.",
    "kafka.sasl.oauthbearer.header.urlencode": "Percent-encode id and secret in the request, as RFC 6749 demands.",
    "kafka.sasl.login.callback.handler.class": "Java's class that provides tokens: OAuthBearerLoginCallbackHandler"
    " (not needed), or IAMOAuthBearerLoginCallbackHandler.",
    "kafka.sasl.client.callback.handler.class": "Java's class for the client's side of AWS_MSK_IAM. No effect.",
    "kafka.sasl.oauthbearer.jwt.retriever.class": "Java's default, client credentials or file retriever; not needed.",
    "kafka.sasl.oauthbearer.jwt.validator.class": "Java's default or client validator; accepted, not needed.",
    "kafka.sasl.login.connect.timeout.ms": "Maximum wait in ms for a connection to the token endpoint.",
    "kafka.sasl.login.read.timeout.ms": "Maximum wait in ms for the answer of the token endpoint.",
    "kafka.sasl.login.retry.backoff.ms": "Initial backoff in ms between failed requests for a token; doubles.",
    "kafka.sasl.login.retry.backoff.max.ms": "Maximum backoff in ms between failed requests for a token.",
    "kafka.sasl.login.refresh.window.factor": "Part of a token's lifetime after which it is renewed, 0.5 to 1.",
    "kafka.sasl.login.refresh.window.jitter": "Maximum part of the lifetime that chance adds to it, 0 to 0.25.",
    "kafka.sasl.login.refresh.min.period.seconds": "Minimum seconds before a token is renewed, if its lifetime allows.",
    "kafka.sasl.login.refresh.buffer.seconds": "Minimum seconds of a token's rest when it is renewed, if its lifetime"
    " allows.",
    "kafka.sasl.oauthbearer.sub.claim.name": "Claim of the token that the log shows as its principal.",
    "kafka.sasl.oauthbearer.scope.claim.name": "Claim of the token that the log shows as its scope.",
    "kafka.sasl.kerberos.service.name": "Kerberos service name of the brokers, for GSSAPI.",
    "kafka.ssl.truststore.location": "PEM file with the trusted CAs.",
    "kafka.ssl.truststore.certificates": "The trusted CAs as PEM text.",
    "kafka.ssl.truststore.type": "Format of the truststore: PEM.",
    "kafka.ssl.keystore.location": "PEM file with the client's private key and certificate chain.",
    "kafka.ssl.keystore.certificate.chain": "The client's certificate chain as PEM text.",
    "kafka.ssl.keystore.key": "The client's encrypted private key as PEM text.",
    "kafka.ssl.keystore.type": "Format of the keystore: PEM.",
    "kafka.ssl.key.password": "Password of the client's private key.",
    "kafka.ssl.endpoint.identification.algorithm": "https, or empty to skip the host name check.",
    "kafka.ssl.enabled.protocols": "Enabled TLS versions.",
    "kafka.ssl.cipher.suites": "Enabled cipher suites of TLS 1.2.",
}


@dataclass(frozen=True, slots=True)
class Option:
    """The public name, the field of the parsed options, and the parser of the text.

    Messages never show the value of a ``secret`` option.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    required: bool = False
    secret: bool = False

    @property
    def description(self) -> str:
        """What the option means, in one sentence or two."""
        return DESCRIPTIONS[self.name]
