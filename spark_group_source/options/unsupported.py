"""Options of other sources and clients that are answered otherwise here: why they are refused, and what to write.

Spark's own source and Kafka's clients accept most of these in silence. Names stand here without ``kafka.``, in lower
case and with points: ``enable_auto_commit`` is found as well.
"""

from __future__ import annotations

from spark_group_source.errors import OptionError

_COMMITS = "offsets are committed as each batch completes, and never by a clock"
_LEAVE_OUT = "Leave it out."
_TOKENS = (
    "tokens come from a function in Python",
    "Set 'kafka.sasl.oauthbearer.token.provider' to one that returns them.",
)
_JVM = ("there is no JVM here: encryption is OpenSSL's, authentication is kafka-python's", _LEAVE_OUT)
_STORE_PASSWORD = ("stores are in PEM, of which only private keys have a password", "Set 'kafka.ssl.key.password'.")
_KERBEROS = (
    "with GSSAPI the ticket of the process is used",
    "Keep one with kinit, or name a keytab in the environment: KRB5_CLIENT_KTNAME.",
)
_DESERIALIZER = (
    "records are read as they are",
    "Convert the columns key and value in Spark: cast('string'), from_json, from_avro.",
)
_ZOOKEEPER = ("consumer groups live in the brokers, and ZooKeeper is gone", "Set 'kafka.bootstrap.servers'.")
_REBALANCE = (
    "trouble with the group never ends a query: joining is tried again until the group is back, and only what cannot"
    " heal is an error",
    "The pauses between tries are 'kafka.retry.backoff.ms' and 'kafka.retry.backoff.max.ms'.",
)

_METRICS = (
    "what happens is told in the query's progress and in the driver's log",
    "Leave it out; lag and commits are in Kafka's own tools as well.",
)
_REBOOTSTRAP = (
    "the bootstrap servers are asked whenever no known broker answers",
    "Leave it out; the pauses are 'kafka.reconnect.backoff.ms' and 'kafka.reconnect.backoff.max.ms'.",
)
_FETCH_OFFSET = (
    "the driver asks for offsets and topics until it is answered, and an outage does not end a query",
    "The pauses between tries are 'kafka.retry.backoff.ms' and 'kafka.retry.backoff.max.ms'.",
)
_UNBUFFERED = (
    "rows go to Spark as they come, and there is no buffer of records",
    "A batch is bounded by 'maxOffsetsPerTrigger', the memory of a task by 'kafka.fetch.max.bytes'.",
)

_LOGIN = """
callback.handler.class connect.timeout.ms read.timeout.ms refresh.buffer.seconds refresh.min.period.seconds
refresh.window.factor refresh.window.jitter retry.backoff.max.ms retry.backoff.ms
"""
_OAUTHBEARER = """
assertion.algorithm assertion.claim.aud assertion.claim.exp.seconds assertion.claim.iss assertion.claim.jti.include
assertion.claim.nbf.seconds assertion.claim.sub assertion.file assertion.private.key.file
assertion.private.key.passphrase assertion.template.file client.credentials.client.id client.credentials.client.secret
clock.skew.seconds expected.audience expected.issuer header.urlencode jwks.endpoint.refresh.ms
jwks.endpoint.retry.backoff.max.ms jwks.endpoint.retry.backoff.ms jwks.endpoint.url jwt.retriever.class
jwt.validator.class scope scope.claim.name sub.claim.name token.endpoint.url
"""
_OF_TOKENS = [f"sasl.login.{each}" for each in _LOGIN.split()] + [
    f"sasl.oauthbearer.{each}" for each in _OAUTHBEARER.split()
]
_OF_TICKETS = [
    f"sasl.kerberos.{each}"
    for each in (
        "keytab",
        "kinit.cmd",
        "min.time.before.relogin",
        "principal",
        "ticket.renew.jitter",
        "ticket.renew.window.factor",
    )
]

UNSUPPORTED: dict[str, tuple[str, str]] = {
    "enable.auto.commit": (_COMMITS, _LEAVE_OUT),
    "auto.commit.enable": (_COMMITS, _LEAVE_OUT),
    "auto.commit.interval.ms": (_COMMITS, "Leave it out; batches come as often as the query's trigger says."),
    "commitmode": (
        "a batch waits for one request to the group's coordinator, and for none that failed: that is repeated later",
        "Set 'groupCommit.timeoutMs' to bound the wait.",
    ),
    "commitoffsets": (
        "a group without commits can neither hand partitions over nor tell when an AvailableNow run is complete",
        "To read without committing use format('kafka'), or give this query a group id of its own.",
    ),
    "auto.offset.reset": (
        "it decides two things that are two options here",
        "Set 'startingOffsets' for partitions without a committed offset, and 'failOnDataLoss' for records that are"
        " gone.",
    ),
    "key.deserializer": _DESERIALIZER,
    "value.deserializer": _DESERIALIZER,
    "deserializer": _DESERIALIZER,
    "interceptor.classes": ("nothing may come between the log and the rows", "Transform the rows in Spark."),
    "max.poll.records": _UNBUFFERED,
    "queued.max.messages": _UNBUFFERED,
    "consumer.timeout.ms": (
        "a query waits for records for ever, and a task for some time",
        "Set 'kafkaConsumer.pollTimeoutMs'.",
    ),
    "num.consumer.fetchers": ("tasks are what fetches", "Set 'minPartitions'."),
    "fetch.message.max.bytes": ("it has another name by now", "Set 'kafka.max.partition.fetch.bytes'."),
    "fetch.error.backoff.ms": ("it has another name here", "Set 'kafka.retry.backoff.ms'."),
    "compacted.topic": ("gaps in the offsets of a topic are never an error", _LEAVE_OUT),
    "default.offset.commit.callback": ("failed commits are logged, counted and tried again", "Set 'onCommitFailure'."),
    "partition.allocator": ("it has another name here", "Set 'kafka.partition.assignment.strategy'."),
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
        "a query that ends leaves its group, unless its member is static",
        "Set 'kafka.group.instance.id' to keep the partitions over a restart.",
    ),
    "internal.throw.on.fetch.stable.offset.unsupported": ("all brokers from 3.3 on tell stable offsets", _LEAVE_OUT),
    "share.acknowledgement.mode": (
        "share groups hand out records one by one, and have no offsets to commit",
        _LEAVE_OUT,
    ),
    "fetchoffset.numretries": _FETCH_OFFSET,
    "fetchoffset.retryintervalms": _FETCH_OFFSET,
    "path": ("topics have no path", "Leave load() without an argument, and set 'subscribe'."),
    "topic": ("it names the topic to write to", "Set 'subscribe'; to write use format('kafka')."),
    "api.version": ("each request has one version, which all brokers from 3.3 on know", _LEAVE_OUT),
    "api.version.request": ("each connection is checked for the versions it needs", _LEAVE_OUT),
    "zk.hosts": _ZOOKEEPER,
    "zookeeper.connect": _ZOOKEEPER,
    "use.rdkafka": ("there is one implementation, in Python", _LEAVE_OUT),
    "group.protocol": (
        "the member speaks the classic protocol, and shares groups with members of the new one",
        _LEAVE_OUT,
    ),
    "group.remote.assignor": (
        "members assign partitions themselves in the classic protocol",
        "Set 'kafka.partition.assignment.strategy'.",
    ),
    "allow.auto.create.topics": ("reading never creates a topic", _LEAVE_OUT),
    "exclude.internal.topics": ("it has another name here", "Set 'includeInternalTopics'."),
    "default.api.timeout.ms": (
        "every call has a deadline of its own",
        "Set 'kafka.request.timeout.ms' or 'groupCommit.timeoutMs'.",
    ),
    "groupidprefix": ("the query is a member of the group that is named", "Set 'kafka.group.id'."),
    "ssl.protocol": ("it names Java's class", "Set 'kafka.ssl.enabled.protocols', for example to TLSv1.2."),
    "ssl.truststore.password": _STORE_PASSWORD,
    "ssl.keystore.password": _STORE_PASSWORD,
    "ssl.ca.location": ("it has another name here", "Set 'kafka.ssl.truststore.location'."),
    "ssl.ca.pem": ("it has another name here", "Set 'kafka.ssl.truststore.certificates'."),
    "ssl.certificate.location": (
        "the certificate chain and the private key are in one file",
        "Set 'kafka.ssl.keystore.location'.",
    ),
    "ssl.key.location": (
        "the certificate chain and the private key are in one file",
        "Set 'kafka.ssl.keystore.location'.",
    ),
    "ssl.certificate.pem": ("it has another name here", "Set 'kafka.ssl.keystore.certificate.chain'."),
    "ssl.key.pem": ("it has another name here", "Set 'kafka.ssl.keystore.key'."),
    "enable.ssl.certificate.verification": (
        "a certificate that nobody checks protects nothing",
        "Name its authority in 'kafka.ssl.truststore.location'.",
    ),
    "ssl.provider": _JVM,
    "ssl.engine.factory.class": _JVM,
    "ssl.keymanager.algorithm": _JVM,
    "ssl.trustmanager.algorithm": _JVM,
    "ssl.secure.random.implementation": _JVM,
    "security.providers": _JVM,
    "sasl.login.class": _JVM,
    "sasl.client.callback.handler.class": _JVM,
    **dict.fromkeys(_OF_TOKENS, _TOKENS),
    **dict.fromkeys(_OF_TICKETS, _KERBEROS),
    "sasl.mechanisms": ("it has another name here", "Set 'kafka.sasl.mechanism'."),
    "grouprebalance.numretries": _REBALANCE,
    "grouprebalance.retryintervalms": _REBALANCE,
    "rebalancedraintimeoutms": (
        "a hand-over may take as long as the brokers wait for it, less two heartbeats",
        "Set 'kafka.max.poll.interval.ms'.",
    ),
}
"""Name to why it is refused, and what to do instead."""


def unsupported_option(key: str) -> OptionError | None:
    """The error for an option that is refused on purpose. Its value is left out: nobody knows what it is."""
    found = UNSUPPORTED.get(key.lower().replace("_", ".").removeprefix("kafka."))
    return None if found is None else OptionError(f"Option '{key}' is not taken: {found[0]}.", found[1])
