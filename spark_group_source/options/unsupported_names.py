"""Options of other sources and clients that this source does not support, each with the reason and the alternative.

Spark's own source and Kafka's clients ignore most of these silently. The names here have no ``kafka.``, lower case and
dots; ``enable_auto_commit`` and ``enableAutoCommit`` are found as well.
"""

from __future__ import annotations

from spark_group_source.errors import OptionError
from spark_group_source.options.foreign_names import FAMILIES, PREFIXES
from spark_group_source.options.spelling import letters
from spark_group_source.text import quoted

_COMMITS = "the source commits offsets when a batch is complete, never at intervals"
_REMOVE = "Remove it."
_RENAMED = "this source has another name for it"
_ASSERTIONS = (
    "an OAuth client signs in with its secret",
    "Set 'kafka.sasl.oauthbearer.client.credentials.client.secret', or 'kafka.sasl.oauthbearer.token.provider' to a"
    " function that returns tokens.",
)
_VALIDATION = ("the brokers validate tokens", "Remove it, or set it in the brokers' configuration.")
_JVM = ("the source uses no Java classes; OpenSSL encrypts and kafka-python authenticates", _REMOVE)
_STORE_PASSWORD = ("stores are PEM files, where only private keys have a password", "Set 'kafka.ssl.key.password'.")
_KERBEROS = (
    "GSSAPI uses the Kerberos ticket of the process",
    "Get a ticket with kinit, or set the environment variable KRB5_CLIENT_KTNAME to a keytab.",
)
_DESERIALIZER = (
    "the columns key and value are the bytes of the record",
    "Convert the columns in Spark: cast('string'), from_json, from_avro.",
)
_ZOOKEEPER = ("the brokers manage consumer groups, without ZooKeeper", "Set 'kafka.bootstrap.servers'.")
_RETRY_BACKOFF = "Set the backoff between retries with 'kafka.retry.backoff.ms' and 'kafka.retry.backoff.max.ms'."
_REBALANCE = (
    "the source retries until the group is available again, and fails only on permanent errors",
    _RETRY_BACKOFF,
)
_METRICS = (
    "the query's progress and the driver's log contain the metrics",
    "Remove it; Kafka's own tools also show lag and commits.",
)
_REBOOTSTRAP = (
    "the source asks a bootstrap server as soon as one known broker does not respond",
    "Set the backoff with 'kafka.reconnect.backoff.ms' and 'kafka.reconnect.backoff.max.ms'.",
)
_FETCH_OFFSET = ("the driver retries until the brokers respond, and an outage does not end a query", _RETRY_BACKOFF)
_UNBUFFERED = (
    "the source passes rows to Spark without a record buffer",
    "Limit a batch with 'maxOffsetsPerTrigger', and the memory of a task with 'kafka.fetch.max.bytes'.",
)

_ASSERTION_NAMES = """
algorithm claim.aud claim.exp.seconds claim.iss claim.jti.include claim.nbf.seconds claim.sub file private.key.file
private.key.passphrase template.file
"""
_ASSERTION_OPTIONS = [f"sasl.oauthbearer.assertion.{name}" for name in _ASSERTION_NAMES.split()]
_VALIDATION_NAMES = """
clock.skew.seconds expected.audience expected.issuer jwks.endpoint.refresh.ms jwks.endpoint.retry.backoff.max.ms
jwks.endpoint.retry.backoff.ms jwks.endpoint.url
"""
_VALIDATION_OPTIONS = [f"sasl.oauthbearer.{name}" for name in _VALIDATION_NAMES.split()]
_TICKET_OPTIONS = [
    f"sasl.kerberos.{name}"
    for name in (
        "keytab",
        "kinit.cmd",
        "min.time.before.relogin",
        "principal",
        "ticket.renew.jitter",
        "ticket.renew.window.factor",
    )
]

UNSUPPORTED: dict[str, tuple[str, str]] = {
    "enable.auto.commit": (_COMMITS, _REMOVE),
    "auto.commit.enable": (_COMMITS, _REMOVE),
    "auto.commit.interval.ms": (_COMMITS, "Set the query's trigger interval instead."),
    "commitmode": (
        "a batch waits for one commit request, and the source retries a failed commit later",
        "Limit the wait with 'offsetCommit.timeoutMs'.",
    ),
    "commitoffsets": (
        "without commits the group can neither move partitions between members nor end an AvailableNow run",
        "To read without commits use format('kafka'), or set a separate 'kafka.group.id'.",
    ),
    "auto.offset.reset": (
        "this source has two options for it",
        "Set 'startingOffsets' for partitions without a committed offset, and 'failOnDataLoss' for lost records.",
    ),
    "key.deserializer": _DESERIALIZER,
    "value.deserializer": _DESERIALIZER,
    "deserializer": _DESERIALIZER,
    "interceptor.classes": ("the source runs no code between the log and the rows", "Transform the rows in Spark."),
    "max.poll.records": _UNBUFFERED,
    "queued.max.messages": _UNBUFFERED,
    "consumer.timeout.ms": (
        "a query waits for records without a limit",
        "Set 'kafkaConsumer.pollTimeoutMs' to limit the wait of a task.",
    ),
    "num.consumer.fetchers": ("Spark tasks fetch the records", "Set the number of tasks with 'minPartitions'."),
    "fetch.message.max.bytes": (_RENAMED, "Set 'kafka.max.partition.fetch.bytes'."),
    "fetch.error.backoff.ms": (_RENAMED, "Set 'kafka.retry.backoff.ms'."),
    "compacted.topic": ("the source always accepts gaps between offsets", _REMOVE),
    "default.offset.commit.callback": ("the source logs, counts and retries failed commits", "Set 'onCommitFailure'."),
    "partition.allocator": (_RENAMED, "Set 'kafka.partition.assignment.strategy'."),
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "metric.group.prefix": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "enable.metrics.push": _METRICS,
    "metadata.recovery.strategy": _REBOOTSTRAP,
    "metadata.recovery.rebootstrap.trigger.ms": _REBOOTSTRAP,
    "internal.leave.group.on.close": (
        "a query leaves its group when it stops, unless it is a static member",
        "Set 'kafka.group.instance.id' to keep the partitions over a restart.",
    ),
    "internal.throw.on.fetch.stable.offset.unsupported": (
        "the source asks for stable offsets where the broker supports that",
        _REMOVE,
    ),
    "share.acknowledgement.mode": ("the source does not support share groups", _REMOVE),
    "fetchoffset.numretries": _FETCH_OFFSET,
    "fetchoffset.retryintervalms": _FETCH_OFFSET,
    "path": ("a topic has no path", "Call load() without an argument, and set 'subscribe'."),
    "topic": ("it names a topic to write to", "Set 'subscribe'. To write, use format('kafka')."),
    "api.version": ("the source asks each broker for its versions", _REMOVE),
    "api.version.request": ("the source asks each broker for its versions", _REMOVE),
    "zk.hosts": _ZOOKEEPER,
    "zookeeper.connect": _ZOOKEEPER,
    "use.rdkafka": ("the source has one implementation, in Python", _REMOVE),
    "allow.auto.create.topics": ("the source never creates a topic", _REMOVE),
    "exclude.internal.topics": (_RENAMED, "Set 'includeInternalTopics'."),
    "default.api.timeout.ms": (
        "each call has its own timeout",
        "Set 'kafka.request.timeout.ms' or 'offsetCommit.timeoutMs'.",
    ),
    "groupidprefix": ("the query joins one named group", "Set 'kafka.group.id'."),
    "ssl.protocol": ("it names a Java class", "Set 'kafka.ssl.enabled.protocols', for example to TLSv1.2."),
    "ssl.truststore.password": _STORE_PASSWORD,
    "ssl.keystore.password": _STORE_PASSWORD,
    "ssl.ca.location": (_RENAMED, "Set 'kafka.ssl.truststore.location'."),
    "ssl.ca.pem": (_RENAMED, "Set 'kafka.ssl.truststore.certificates'."),
    "ssl.certificate.location": (
        "one PEM file contains the certificate chain and the private key",
        "Set 'kafka.ssl.keystore.location'.",
    ),
    "ssl.key.location": (
        "one PEM file contains the certificate chain and the private key",
        "Set 'kafka.ssl.keystore.location'.",
    ),
    "ssl.certificate.pem": (_RENAMED, "Set 'kafka.ssl.keystore.certificate.chain'."),
    "ssl.key.pem": (_RENAMED, "Set 'kafka.ssl.keystore.key'."),
    "enable.ssl.certificate.verification": (
        "TLS without certificate checks does not protect the connection",
        "Set 'kafka.ssl.truststore.location' to a PEM file with the certificate's CA.",
    ),
    "ssl.provider": _JVM,
    "ssl.engine.factory.class": _JVM,
    "ssl.keymanager.algorithm": _JVM,
    "ssl.trustmanager.algorithm": _JVM,
    "ssl.secure.random.implementation": _JVM,
    "security.providers": _JVM,
    "sasl.login.class": _JVM,
    **dict.fromkeys(_ASSERTION_OPTIONS, _ASSERTIONS),
    **dict.fromkeys(_VALIDATION_OPTIONS, _VALIDATION),
    **dict.fromkeys(_TICKET_OPTIONS, _KERBEROS),
    "sasl.mechanisms": (_RENAMED, "Set 'kafka.sasl.mechanism'."),
    "grouprebalance.numretries": _REBALANCE,
    "grouprebalance.retryintervalms": _REBALANCE,
    "rebalancedraintimeoutms": ("the rebalance timeout limits a revocation", "Set 'kafka.max.poll.interval.ms'."),
}
"""Name -> the reason, and the alternative."""

for _family in FAMILIES:
    for _name in _family.names.split():
        UNSUPPORTED.setdefault(_name, (_family.reason, _family.action))

_BY_LETTERS = {letters(name): entry for name, entry in UNSUPPORTED.items()}


def unsupported_option(key: str) -> OptionError | None:
    """The error for an unsupported option. It does not show the value, which may be a secret."""
    entry = _BY_LETTERS.get(letters(key)) or _by_prefix(key)
    if entry is None:
        return None
    reason, action = entry
    return OptionError(f"Option {quoted(key)} is not supported: {reason}.", action)


def _by_prefix(key: str) -> tuple[str, str] | None:
    spelled = key.lower().replace("_", ".").removeprefix("kafka.")
    found = [family for prefix, family in PREFIXES.items() if spelled.startswith(prefix)]
    return (found[0].reason, found[0].action) if found else None
