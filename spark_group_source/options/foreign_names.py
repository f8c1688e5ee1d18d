"""Names of options that this source does not have: of Kafka's clients and brokers, and of Spark's writers and sources.

Each :class:`Family` of names has one reason and one alternative. Names are in lower case, with dots, and without the
prefix ``kafka.``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Names that are no options for one reason, and what to do instead. Blanks separate the ``names``."""

    reason: str
    action: str
    names: str


_REMOVE = "Remove it."
_RENAMED = "this source has another name for it"
_OF_QUERY = "it belongs to the query and its sink, not to the source"

KAFKA = (
    Family(
        "the source commits offsets when a batch is complete, never at intervals",
        "Set the query's trigger interval instead.",
        "auto.commit.interval.ms",
    ),
    Family(
        "this source has two options for it",
        "Set 'startingOffsets' for partitions without a committed offset, and 'failOnDataLoss' for lost records.",
        "auto.offset.reset",
    ),
    Family(
        "the columns key and value are the bytes of the record",
        "Convert the columns in Spark: cast('string'), from_json, from_avro.",
        "key.deserializer value.deserializer deserializer",
    ),
    Family(
        "the source runs no code between the log and the rows", "Transform the rows in Spark.", "interceptor.classes"
    ),
    Family(
        "the query's progress and the driver's log contain the metrics",
        "Remove it; Kafka's own tools also show lag and commits.",
        """metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms metric.group.prefix
        auto.include.jmx.reporter enable.metrics.push""",
    ),
    Family(
        "the source asks a bootstrap server as soon as one known broker does not respond",
        "Set the backoff with 'kafka.reconnect.backoff.ms' and 'kafka.reconnect.backoff.max.ms'.",
        "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
    ),
    Family(
        "a query leaves its group when it stops, unless it is a static member",
        "Set 'kafka.group.instance.id' to keep the partitions over a restart.",
        "internal.leave.group.on.close",
    ),
    Family(
        "the source asks for stable offsets if the broker supports them",
        _REMOVE,
        "internal.throw.on.fetch.stable.offset.unsupported",
    ),
    Family("the source does not support share groups", _REMOVE, "share.acknowledgement.mode"),
    Family("the source never creates a topic", _REMOVE, "allow.auto.create.topics"),
    Family(
        "internal topics are excluded by default",
        "Remove it, or set 'includeInternalTopics' to true to read internal topics, too.",
        "exclude.internal.topics",
    ),
    Family(
        "each call has its own timeout",
        "Set 'kafka.request.timeout.ms' or 'offsetCommit.timeoutMs'.",
        "default.api.timeout.ms",
    ),
    Family("it names a Java class", "Set 'kafka.ssl.enabled.protocols', for example to TLSv1.2.", "ssl.protocol"),
    Family(
        "stores are PEM files, where only private keys have a password",
        "Set 'kafka.ssl.key.password'.",
        "ssl.keystore.password",
    ),
    Family(
        "the truststore is a PEM file, which has no password",
        "Remove it. The error for a Java store contains the command that converts it to PEM.",
        "ssl.truststore.password",
    ),
    Family(
        "the source uses no Java classes; OpenSSL encrypts and kafka-python authenticates",
        _REMOVE,
        """ssl.provider ssl.engine.factory.class ssl.keymanager.algorithm ssl.trustmanager.algorithm
        ssl.secure.random.implementation security.providers sasl.login.class""",
    ),
    Family(
        "an OAuth client signs in with its secret",
        "Set 'kafka.sasl.oauthbearer.client.credentials.client.secret', or"
        " 'kafka.sasl.oauthbearer.token.provider' to a function that returns tokens.",
        """sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file""",
    ),
    Family(
        "the brokers validate tokens",
        "Remove it, or set it in the brokers' configuration.",
        """sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
        sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url""",
    ),
    Family(
        "GSSAPI uses the Kerberos ticket of the process",
        "Get a ticket with kinit, or set the environment variable KRB5_CLIENT_KTNAME to a keytab.",
        """sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
        sasl.kerberos.principal sasl.kerberos.ticket.renew.jitter
        sasl.kerberos.ticket.renew.window.factor""",
    ),
)
"""Configurations of Kafka's Java consumer, also of its older releases."""

SPARK = (
    Family(
        _OF_QUERY,
        'Set it on the query: .writeStream.option("checkpointLocation", ...).',
        "checkpointlocation checkpoint.location checkpoint checkpointdir checkpoint.dir",
    ),
    Family(
        _OF_QUERY,
        "Call the method of that name on writeStream: queryName, outputMode, trigger, partitionBy or foreachBatch.",
        """queryname query.name outputmode output.mode trigger processingtime processing.time once availablenow
        continuous partitionby foreachbatch""",
    ),
    Family(
        _OF_QUERY,
        "Set it with .option(...) on writeStream.",
        """truncate numrows mergeschema overwriteschema txnappid txnversion savemode replacewhere""",
    ),
    Family(
        _OF_QUERY,
        "Remove it here and on writeStream: see the section Limitations of docs/compatibility.md.",
        """asyncprogresstrackingenabled asyncprogresstrackingcheckpointintervalms
        asyncprogresstrackingoverridesinksupportcheck""",
    ),
    Family(
        "it belongs to a source of files or tables",
        "Remove it. Parse the column value in Spark: from_json, from_csv, from_avro.",
        """header inferschema infer.schema multiline delimiter sep encoding charset mode columnnameofcorruptrecord
        dateformat timestampformat recursivefilelookup pathglobfilter latestfirst maxfileage cleansource
        maxfilespertrigger startingversion readchangefeed ignorechanges ignoredeletes
        skipchangecommits schematrackinglocation""",
    ),
    Family(
        "it belongs to another source of Spark",
        _REMOVE,
        """rowspersecond rampuptime numrows.per.second includetimestamp streamname initialposition subscriptionid
        projectid dbtable driver url query""",
    ),
    Family(
        "it belongs to another source of Spark",
        "Set the hosts and ports of the brokers with 'kafka.bootstrap.servers'.",
        "host port",
    ),
    Family(
        "the columns of a source are set with .schema(...)",
        "Call .schema(...) before load(). In that schema key and value may be string.",
        "schema columns userschema",
    ),
    Family(
        "the driver retries until the brokers respond, and an outage does not end a query",
        "Set the backoff between retries with 'kafka.retry.backoff.ms' and 'kafka.retry.backoff.max.ms'.",
        "fetchoffset.numretries fetchoffset.retryintervalms",
    ),
    Family("a topic has no path", "Call load() without an argument, and set 'subscribe'.", "path"),
    Family("it names a topic to write to", "Set 'subscribe'. To write, use format('kafka').", "topic"),
    Family("the query joins one named group", "Set 'kafka.group.id'.", "groupidprefix"),
)

OTHER_WORDS = (
    Family(
        _RENAMED, "Set 'subscribe'.", "topics topic.name topicname subscribetopics subscription topiclist input.topic"
    ),
    Family(
        _RENAMED,
        "Set 'subscribePattern'.",
        "topicpattern topic.pattern topicspattern topics.pattern topic.regex topics.regex topicregex pattern",
    ),
    Family(
        "the source has no list of topics to leave out",
        "Remove it, and set 'subscribePattern' to a pattern that does not match them.",
        "topic.blacklist topic.denylist exclude.topics",
    ),
    Family("a query unsubscribes when it stops", _REMOVE, "unsubscribe"),
    Family(
        _RENAMED,
        "Set 'kafka.bootstrap.servers'.",
        """brokers broker servers server broker.list brokerlist metadata.broker.list bootstrap bootstrap.brokers
        brokers.list kafka.brokers hosts""",
    ),
    Family(
        _RENAMED, "Set 'kafka.group.id'.", "consumergroup consumer.group consumer.group.id group groupname group.name"
    ),
    Family(
        _RENAMED,
        "Set 'maxOffsetsPerTrigger'; for bytes set 'maxBytesPerTrigger'.",
        """maxrecordspertrigger maxrowspertrigger maxmessagespertrigger maxeventspertrigger maxoffsetsperbatch
        maxrecordsperbatch maxratepertrigger maxrecords max.records batch.records""",
    ),
    Family(
        "the limits count the offsets of a batch, not those of a second",
        "Set 'maxOffsetsPerTrigger', or 'targetBatchDuration'.",
        "maxrateperpartition max.rate.per.partition",
    ),
    Family(
        _RENAMED,
        "Set 'targetBatchDuration', for example to 30s.",
        """batchduration batch.duration maxbatchduration targetduration targetbatchtime maxbatchtime backpressure
        backpressure.enabled backpressureenabled enablebackpressure streaming.backpressure.enabled adaptivebatchsize
        targetbatchinterval targettriggerduration""",
    ),
    Family(
        _RENAMED,
        "Set 'minOffsetsPerTrigger'; it counts offsets, not bytes.",
        "minrecordspertrigger minrowspertrigger minmessagespertrigger mineventspertrigger minbytespertrigger",
    ),
    Family(
        "a batch has at least one task for all small partitions, and no maximum number of tasks",
        "Set 'minRecordsPerTask' to a larger number for fewer tasks.",
        "maxpartitions maxtasks max.tasks coalesce",
    ),
    Family(
        _RENAMED,
        "Set 'maxRecordsPerPartition', which limits a task.",
        "maxrecordspertask maxoffsetspertask maxoffsetsperpartition",
    ),
    Family(_RENAMED, "Set 'minRecordsPerTask'.", "minrecordsperpartition minoffsetspertask minoffsetsperpartition"),
    Family(_RENAMED, "Set 'minPartitions'.", "num.partitions.per.batch mintasks parallelism concurrency"),
    Family(
        "the brokers know the number of a topic's partitions",
        "To raise the number of tasks, set 'minPartitions'.",
        "num.partitions partitions partition.count",
    ),
    Family(
        "it belongs to a producer, and the source only reads",
        "To limit a micro-batch, set 'maxOffsetsPerTrigger' or 'maxBytesPerTrigger'.",
        "batch.size",
    ),
    Family(
        _RENAMED,
        "Set 'startingOffsets'.",
        """startingposition startposition startoffset startoffsets start.offset fromoffsets fromoffset frombeginning
        from.beginning offset offsets initialoffset initial.offset startfrom start.from offsetreset offset.reset""",
    ),
    Family(
        _RENAMED, "Set 'endingOffsets'.", "endoffset endoffsets end.offset untiloffset untiloffsets stoppingoffsets"
    ),
    Family(
        _RENAMED,
        "Set 'startingTimestamp' or 'endingTimestamp'.",
        """starttimestamp starttime start.time startingtime startingdatetime fromtimestamp endtimestamp endtime end.time
        endingtime startingdate endingdate startingoffsetsbytime startingoffsettimestamp""",
    ),
    Family(
        _RENAMED,
        "Set 'failOnDataLoss' to false to continue after lost records.",
        "ignoredataloss dataloss failonloss failonmissingdata",
    ),
    Family(_RENAMED, "Set 'resetOffsetsOnStart'.", "resetoffsets reset.offsets"),
    Family(_RENAMED, "Set 'leaveGroupOnStop'.", "leavegroup leave.group leaveonstop leavegrouponclose"),
    Family(_RENAMED, "Set 'kafka.isolation.level'.", "isolation read.committed"),
    Family(_RENAMED, "Set 'kafka.client.rack'.", "rack rack.id consumer.rack"),
    Family(
        _RENAMED,
        "Set 'kafka.group.instance.id'.",
        "instance.id static.id static.member.id group.member.id static.membership",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.socket.connection.setup.timeout.ms'.",
        """connect.timeout connect.timeout.ms connection.timeout connection.timeout.ms socket.connection.timeout.ms
        socket.connect.timeout.ms connection.setup.timeout.ms socket.setup.timeout.ms""",
    ),
    Family(_RENAMED, "Set 'kafkaConsumer.pollTimeoutMs'.", "polltimeoutms poll.timeout.ms poll.timeout polltimeout"),
    Family(
        _RENAMED,
        "Set 'kafka.max.poll.interval.ms'.",
        "rebalance.timeout.ms rebalancetimeoutms group.rebalance.timeout.ms max.rebalance.time",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.sasl.username' and 'kafka.sasl.password'.",
        """username user password passwd sasl.user sasl.plain.username sasl.plain.password api.key api.secret apikey
        apisecret""",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.sasl.jaas.config'.",
        "jaas jaas.config jaasconfig sasl.jaas java.security.auth.login.config",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.sasl.oauthbearer.token.provider'.",
        "token tokenprovider sasl.oauth.token.provider oauth.cb oauthbearer.token.refresh.cb",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.security.protocol' to SSL, or to SASL_SSL with a SASL mechanism.",
        "tls ssl use.ssl use.tls enable.ssl enable.tls ssl.enabled tls.enabled ssl.enable with.tls",
    ),
    Family(
        "AWS's library finds credentials and region for AWS_MSK_IAM",
        "Set environment variables or a profile: docs/authentication.md, 'Amazon MSK'.",
        """aws.region awsregion sasl.aws.region awsprofile aws.profile.name awsprofilename awsrolearn rolearn
        aws.role.arn awsaccesskeyid awssecretkey aws.secret.access.key aws.access.key.id awssecretaccesskey""",
    ),
    Family(
        "this source reads Event Hubs through Kafka's protocol",
        "See the section Brokers of docs/compatibility.md.",
        "connectionstring connection.string eventhub.name eventhubname sharedaccesskey sharedaccesskeyname",
    ),
)

FORMER = (
    Family("it has another name now", "Set 'startingOffsetsCallback'.", "rebalancecallback"),
    Family("it has another name now", "Set 'minBatchInterval'.", "batchinterval batch.interval.ms"),
    Family(
        "Spark alone filters the rows",
        "Remove it. To read less in a batch query, set 'startingTimestamp', or name partitions in 'assign'.",
        "pushdownfilters pushfilters filterpushdown",
    ),
    Family(
        "it has another name now",
        "Set 'offsetCommit.timeoutMs', 'offsetCommit.numRetries' or 'offsetCommit.retryIntervalMs'.",
        "groupcommit.timeoutms groupcommit.numretries groupcommit.retryintervalms",
    ),
    Family(
        "a batch waits for one commit request, and the source retries a failed commit later",
        "Limit the wait with 'offsetCommit.timeoutMs'.",
        "commitmode",
    ),
    Family(
        "without commits the group can neither move partitions between members nor end an AvailableNow run",
        "To read without commits use format('kafka'), or set a separate 'kafka.group.id'.",
        "commitoffsets",
    ),
    Family(
        "the source retries until the group is available again, and fails only on permanent errors",
        "Set the backoff between retries with 'kafka.retry.backoff.ms' and 'kafka.retry.backoff.max.ms'.",
        "grouprebalance.numretries grouprebalance.retryintervalms",
    ),
    Family(
        "the rebalance timeout limits how long a revocation waits",
        "Set 'kafka.max.poll.interval.ms'.",
        "rebalancedraintimeoutms",
    ),
)
"""Names that this package had before."""

WRITERS = (
    Family(
        "it belongs to a producer, and the source only reads",
        "Remove it. To write to Kafka use format('kafka').",
        """acks request.required.acks request.timeout.acks linger.ms batch.num.messages buffer.memory
        compression.type compression.codec compression.level compression.gzip.level compression.lz4.level
        compression.zstd.level compression codec max.block.ms max.request.size delivery.timeout.ms message.timeout.ms
        message.send.max.retries max.in.flight.requests.per.connection max.in.flight enable.idempotence
        enable.gapless.guarantee transactional.id transaction.timeout.ms transaction.two.phase.commit.enable
        key.serializer value.serializer serializer.class key.serializer.class partitioner partitioner.class
        partitioner.ignore.keys partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
        metadata.max.idle.ms producer.type queue.buffering.max.messages queue.buffering.max.kbytes
        queue.buffering.max.ms queuing.strategy produce.offset.report sticky.partitioning.linger.ms
        queue.buffering.backpressure.threshold dr.cb dr.msg.cb delivery.report.only.error""",
    ),
    Family(
        "the source retries until the brokers respond",
        "Set 'kafka.retry.backoff.ms'.",
        "retries max.retries retry retry.max num.retries number.of.retries retry.count",
    ),
)

CLIENTS = (
    Family(
        "the source logs with Python's module logging",
        'Set the level there: logging.getLogger("spark_group_source").setLevel("DEBUG").',
        """debug log.level log.queue log.cb log.thread.name log.connection.close logger loglevel verbose
        level""",
    ),
    Family(
        "the source calls none of the functions of other clients",
        "Watch the query with a listener: docs/monitoring.md.",
        """error.cb stats.cb throttle.cb rebalance.cb consume.cb offset.commit.cb on.commit event.cb background.event.cb
        socket.cb connect.cb closesocket.cb open.cb resolve.cb opaque enabled.events statistics.interval.ms
        on.partitions.assigned on.partitions.revoked on.partitions.lost rebalance.listener
        ssl.certificate.verify.cb interceptors plugin.library.paths""",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.request.timeout.ms'.",
        "socket.timeout.ms api.version.request.timeout.ms session.request.timeout.ms",
    ),
    Family(_RENAMED, "Set 'kafka.receive.buffer.bytes'.", "socket.receive.buffer.bytes so.rcvbuf"),
    Family(_RENAMED, "Set 'kafka.send.buffer.bytes'.", "socket.send.buffer.bytes so.sndbuf"),
    Family(_RENAMED, "Set 'kafka.fetch.max.wait.ms'.", "fetch.wait.max.ms"),
    Family(
        _RENAMED,
        "Set 'kafka.fetch.max.bytes'.",
        "receive.message.max.bytes message.max.bytes max.message.bytes max.message.size",
    ),
    Family(
        _RENAMED,
        "Set 'kafka.metadata.max.age.ms'.",
        """topic.metadata.refresh.interval.ms topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.fast.cnt
        topic.metadata.refresh.sparse topic.metadata.propagation.max.ms metadata.refresh.interval.ms
        flink.partition-discovery.interval-millis scan.topic.partition.discovery.interval
        partition.discovery.interval.ms""",
    ),
    Family(_RENAMED, "Set 'kafka.source.host'.", "source.address local.address bind.address client.address"),
    Family(
        _RENAMED,
        "Set 'kafka.partition.assignment.strategy'.",
        "membership.protocol assignment.strategy assignor assignors partition.allocator",
    ),
    Family(
        "the source chooses it itself",
        _REMOVE,
        """socket.keepalive.enable socket.nagle.disable socket.max.fails socket.blocking.max.ms socket.options
        socket.connections.max broker.address.family broker.address.ttl broker.version.fallback broker.version
        api.version.fallback.ms api.version.auto.timeout.ms reconnect.backoff.jitter.ms enable.random.seed
        builtin.features client.software.name client.software.version internal.termination.signal
        coordinator.query.interval.ms group.protocol.type selector kafka.client legacy.iterator
        use.rdkafka default.topic.conf message.copy.max.bytes consume.callback.max.messages auto.start
        consumer.id member.id generation.id offsets.channel.backoff.ms offsets.channel.socket.timeout.ms ssl.curves.list
        ssl.sigalgs.list ssl.providers ssl.engine.location ssl.engine.id ssl.ca.certificate.stores metrics.enabled""",
    ),
    Family(
        "the source commits offsets when a batch is complete, never at intervals",
        _REMOVE,
        """enable.auto.offset.store offset.store.method offset.store.path offset.store.sync.interval.ms
        auto.commit autocommit auto.commit.interval.messages commit.interval.ms
        offsets.storage dual.commit.enabled offsets.commit.max.retries ack.mode ackmode
        commit.interval commit.on.checkpoint enable.auto.commit auto.commit.enable""",
    ),
    Family(
        "the source passes rows to Spark without a record buffer",
        "Limit a batch with 'maxOffsetsPerTrigger', and the memory of a task with 'kafka.fetch.max.bytes'.",
        """queued.min.messages queued.max.messages.kbytes queued.max.message.chunks fetch.queue.backoff.ms
        max.poll.size prefetch max.poll.records queued.max.messages""",
    ),
    Family(
        "a streaming query has no end",
        "To stop at the current end offsets, use .trigger(availableNow=True).",
        "enable.partition.eof partition.eof stop.at.end exit.eof max.messages",
    ),
    Family(
        "the group's coordinator decides when to rebalance",
        "To limit how long a rebalance waits for this member, set 'kafka.max.poll.interval.ms'.",
        """rebalance.max.retries rebalance.backoff.ms refresh.leader.backoff.ms""",
    ),
    Family(
        "PEM files or texts hold certificates and keys",
        "Set 'kafka.ssl.truststore.location' and 'kafka.ssl.keystore.location'.",
        """ssl.cafile ssl.certfile ssl.keyfile ssl.crlfile ssl.crl.location ssl.ca ssl.certificate ssl.key ssl.context
        ssl.keystore.pem cafile certfile keyfile https.ca.location https.ca.pem ssl.truststore ssl.truststore.path
        ssl.truststore.file ssl.truststore.pem ssl.keystore ssl.keystore.path ssl.keystore.file ssl.cert
        ssl.cert.location ssl.client.cert ssl.client.key""",
    ),
    Family(_RENAMED, "Set 'kafka.ssl.key.password'.", "ssl.password ssl.key.pass ssl.keyfile.password"),
    Family(_RENAMED, "Set 'kafka.ssl.cipher.suites'.", "ssl.ciphers ciphers"),
    Family(
        _RENAMED,
        "Set 'kafka.ssl.endpoint.identification.algorithm'.",
        "ssl.check.hostname ssl.verify.hostname ssl.hostname.verification",
    ),
    Family(
        "TLS without certificate checks does not protect the connection",
        "Set 'kafka.ssl.truststore.location' to a PEM file with the certificate's CA.",
        """insecure verify ssl.insecure tls.insecure ssl.verify verify.ssl insecure.skip.verify skip.verify
        enable.ssl.certificate.verification""",
    ),
    Family(
        "the options for OAuth are those of Kafka's Java client",
        "Set 'kafka.sasl.oauthbearer.token.endpoint.url' and"
        " 'kafka.sasl.oauthbearer.client.credentials.client.id': docs/authentication.md.",
        """sasl.oauthbearer.config sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
        sasl.oauthbearer.extensions sasl.oauthbearer.grant.type enable.sasl.oauthbearer.unsecure.jwt oauth.client.id
        oauth.client.secret oauth.token.endpoint.uri client.secret token.endpoint sasl.client.id sasl.client.secret
        sasl.scope sasl.token sasl.oauthbearer.token sasl.oauthbearer.url sasl.extensions
        sasl.oauthbearer.metadata.authentication.type""",
    ),
    Family(
        "GSSAPI uses the Kerberos ticket of the process",
        "Set 'kafka.sasl.kerberos.service.name', and get a ticket with kinit.",
        """sasl.kerberos.domain.name sasl.kerberos.name sasl.kerberos.service kerberos.service.name principal keytab
        kerberos.principal kerberos.keytab""",
    ),
    Family(
        "the source does not decode values with a schema registry",
        "Decode the column value in Spark: docs/howto.md, 'Decode Schema Registry records'.",
        """schema.registry schemaregistry auto.register.schemas use.latest.version specific.avro.reader
        schemaregistryurl value.subject.name.strategy key.subject.name.strategy avro.use.logical.type.converters
        json.value.type
        key.converter value.converter value.format key.format format avro.schema schema.id""",
    ),
    Family(
        "it belongs to Kafka Streams, Flink or Kafka Connect",
        "Remove it.",
        """application.id application.server num.stream.threads processing.guarantee state.dir default.key.serde
        default.value.serde connector key.fields value.fields-include tasks.max connector.class topology.optimization
        semantic""",
    ),
    Family(
        "a query waits for records without a limit",
        "Set 'kafkaConsumer.pollTimeoutMs' to limit the wait of a task.",
        "consumer.timeout.ms",
    ),
    Family("Spark tasks fetch the records", "Set the number of tasks with 'minPartitions'.", "num.consumer.fetchers"),
    Family(_RENAMED, "Set 'kafka.max.partition.fetch.bytes'.", "fetch.message.max.bytes"),
    Family(_RENAMED, "Set 'kafka.retry.backoff.ms'.", "fetch.error.backoff.ms"),
    Family("the source always accepts gaps between offsets", _REMOVE, "compacted.topic"),
    Family(
        "the source logs, counts and retries failed commits", "Set 'onCommitFailure'.", "default.offset.commit.callback"
    ),
    Family("the source asks each broker for its versions", _REMOVE, "api.version api.version.request"),
    Family(
        "the brokers manage consumer groups, without ZooKeeper",
        "Set 'kafka.bootstrap.servers'.",
        "zk.hosts zookeeper.connect",
    ),
    Family(_RENAMED, "Set 'kafka.ssl.truststore.location'.", "ssl.ca.location"),
    Family(_RENAMED, "Set 'kafka.ssl.truststore.certificates'.", "ssl.ca.pem"),
    Family(
        "one PEM file contains the certificate chain and the private key",
        "Set 'kafka.ssl.keystore.location'.",
        "ssl.certificate.location ssl.key.location",
    ),
    Family(_RENAMED, "Set 'kafka.ssl.keystore.certificate.chain'.", "ssl.certificate.pem"),
    Family(_RENAMED, "Set 'kafka.ssl.keystore.key'.", "ssl.key.pem"),
    Family(_RENAMED, "Set 'kafka.sasl.mechanism'.", "sasl.mechanisms"),
)

BROKERS = (
    Family(
        "it configures brokers, topics or groups, not their clients",
        "Remove it here, and set it with kafka-configs.",
        """advertised.listeners listeners auto.create.topics.enable delete.topic.enable retention.ms
        retention.bytes log.retention.ms log.retention.hours log.retention.bytes cleanup.policy min.insync.replicas
        replication.factor default.replication.factor segment.bytes segment.ms message.timestamp.type
        message.format.version message.timestamp.difference.max.ms unclean.leader.election.enable
        offsets.retention.minutes offset.metadata.max.bytes offsets.topic.replication.factor
        group.min.session.timeout.ms group.max.session.timeout.ms group.initial.rebalance.delay.ms group.max.size
        group.consumer.session.timeout.ms group.consumer.heartbeat.interval.ms group.consumer.assignors
        group.coordinator.rebalance.protocols consumer.session.timeout.ms consumer.heartbeat.interval.ms
        fetch.max.bytes.per.broker replica.selector.class broker.id broker.rack node.id inter.broker.listener.name
        sasl.enabled.mechanisms ssl.client.auth super.users max.connections.per.ip quota.consumer.default""",
    ),
)

FAMILIES = (*KAFKA, *SPARK, *OTHER_WORDS, *FORMER, *WRITERS, *CLIENTS, *BROKERS)

_WITHOUT_PREFIX = "Write the name of Kafka's Java client with kafka. before it, for example kafka.fetch.min.bytes."

PREFIXES = {
    "spark.": Family("it is a configuration of Spark", "Set it with spark.conf.set(...) or --conf.", ""),
    "spring.": Family("it is a name of Spring", _WITHOUT_PREFIX, ""),
    "properties.": Family("it is a name of Flink", _WITHOUT_PREFIX, ""),
    "consumer.": Family("options have no such prefix", _WITHOUT_PREFIX, ""),
    "scan.": Family("it is a name of Flink", "Set 'startingOffsets' for the start.", ""),
    "sink.": Family("it belongs to a sink of Flink", _REMOVE, ""),
    "producer.": Family("it belongs to a producer, and the source only reads", _REMOVE, ""),
    "admin.": Family("it belongs to Kafka's admin client", _REMOVE, ""),
    "streams.": Family("it belongs to Kafka Streams", _REMOVE, ""),
    "schema.registry.": Family(
        "the source does not decode values with a schema registry",
        "Decode the column value in Spark: docs/howto.md, 'Decode Schema Registry records'.",
        "",
    ),
    "basic.auth.": Family(
        "the source does not decode values with a schema registry",
        "Decode the column value in Spark: docs/howto.md, 'Decode Schema Registry records'.",
        "",
    ),
    "confluent.": Family("it belongs to software of Confluent", _REMOVE, ""),
    "zookeeper.": Family("the brokers manage consumer groups, without ZooKeeper", "Set 'kafka.bootstrap.servers'.", ""),
    "listener.": Family(
        "it configures brokers, topics or groups, not their clients",
        "Remove it here, and set it with kafka-configs.",
        "",
    ),
    "eventhubs.": Family(
        "this source reads Event Hubs through Kafka's protocol", "See the section Brokers of docs/compatibility.md.", ""
    ),
    "cloudfiles.": Family("it belongs to a source of files or tables", _REMOVE, ""),
    "delta.": Family("it belongs to a source of files or tables", _REMOVE, ""),
    "hoodie.": Family("it belongs to a source of files or tables", _REMOVE, ""),
    "kinesis.": Family("it belongs to another source of Spark", _REMOVE, ""),
}
"""By prefix, the family of all names that begin with it."""
