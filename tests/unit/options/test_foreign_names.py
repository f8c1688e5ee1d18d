"""Names that people try: of writers, listeners, other clients and brokers. Each answer is right, and short."""

from __future__ import annotations

import re

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.unsupported_names import UNSUPPORTED
from spark_group_source.spelling import distance, letters, nearest
from tests.unit.options.test_option_names import error
from tests.unit.options.test_options import GOOD

LONGEST = 420
"""Maximum number of characters of an answer."""

WRITER, PRODUCER, METHOD, SINK = (
    "writeStream.option",
    "To write to Kafka use",
    "queryName, outputMode",
    "on writeStream",
)
FILES, PAGE, BROKERS, COMMITS = "Parse the column value", "docs/options.md", "kafka-configs", "when a batch is complete"
LISTENER, LOGGING, ITSELF = "docs/monitoring.md", "logging", "chooses it itself"
REGISTRY, OAUTH, KINIT, PREFIX = "Decode Schema Registry", "docs/authentication.md", "kinit", "with kafka. before it"
BUFFER, LIMIT, STORES = "without a record buffer", "'maxOffsetsPerTrigger'", "'kafka.ssl.truststore.location'"

ANSWERS = {
    # Spark's writers, queries and other sources
    "checkpointLocation": WRITER,
    "queryName": METHOD,
    "outputMode": METHOD,
    "trigger": METHOD,
    "processingTime": METHOD,
    "availableNow": METHOD,
    "partitionBy": METHOD,
    "truncate": SINK,
    "numRows": SINK,
    "mergeSchema": SINK,
    "asyncProgressTrackingEnabled": "docs/compatibility.md",
    "asyncProgressTrackingCheckpointIntervalMs": "docs/compatibility.md",
    "txnAppId": SINK,
    "path": "Call load() without an argument",
    "topic": "To write, use format('kafka')",
    "header": FILES,
    "inferSchema": FILES,
    "multiLine": FILES,
    "delimiter": FILES,
    "maxFilesPerTrigger": FILES,
    "startingVersion": FILES,
    "ignoreChanges": FILES,
    "cloudFiles.format": "files or tables",
    "rowsPerSecond": "another source",
    "host": "'kafka.bootstrap.servers'",
    "kafka.port": "'kafka.bootstrap.servers'",
    "streamName": "another source",
    "schema": ".schema(...)",
    "spark.sql.shuffle.partitions": "spark.conf.set",
    "spark.streaming.kafka.maxRatePerPartition": "spark.conf.set",
    "spark.kafka.consumer.cache.capacity": "spark.conf",
    "groupIdPrefix": "'kafka.group.id'",
    "fetchOffset.numRetries": "'kafka.retry.backoff.ms'",
    # words for what this source has
    "topics": "'subscribe'",
    "topicName": "'subscribe'",
    "topicPattern": "'subscribePattern'",
    "topics.regex": "'subscribePattern'",
    "brokers": "'kafka.bootstrap.servers'",
    "broker.list": "bootstrap.servers'",
    "metadata.broker.list": "'kafka.bootstrap.servers'",
    "kafka.brokers": "'kafka.bootstrap.servers'",
    "consumerGroup": "'kafka.group.id'",
    "consumer_group": "'kafka.group.id'",
    "maxBatchDuration": "'targetBatchDuration'",
    "backpressure.enabled": "'targetBatchDuration'",
    "maxRecordsPerTrigger": LIMIT,
    "maxMessagesPerTrigger": LIMIT,
    "maxEventsPerTrigger": LIMIT,
    "maxRowsPerTrigger": LIMIT,
    "batchSize": LIMIT,
    "minRecordsPerTrigger": "'minOffsetsPerTrigger'",
    "minBytesPerTrigger": "'minOffsetsPerTrigger'",
    "maxPartitions": "'minRecordsPerTask'",
    "numPartitions": "'minPartitions'",
    "concurrency": "'minPartitions'",
    "startingPosition": "'startingOffsets'",
    "fromOffsets": "'startingOffsets'",
    "from_beginning": "'startingOffsets'",
    "fromBeginning": "'startingOffsets'",
    "startTimestamp": "'startingTimestamp'",
    "endOffset": "'endingOffsets'",
    "kafka.rebalance.timeout.ms": "'kafka.max.poll.interval.ms'",
    "pollTimeoutMs": "'kafkaConsumer.pollTimeoutMs'",
    "username": "'kafka.sasl.username'",
    "password": "'kafka.sasl.password'",
    "kafka.api.key": "'kafka.sasl.username'",
    "jaas.config": "'kafka.sasl.jaas.config'",
    "tokenProvider": "'kafka.sasl.oauthbearer.token.provider'",
    # producers
    "kafka.acks": PRODUCER,
    "acks": PRODUCER,
    "kafka.linger.ms": PRODUCER,
    "kafka.batch.size": "producer",
    "kafka.buffer.memory": PRODUCER,
    "kafka.compression.type": PRODUCER,
    "kafka.max.request.size": PRODUCER,
    "kafka.max.in.flight.requests.per.connection": PRODUCER,
    "kafka.enable.idempotence": PRODUCER,
    "kafka.transactional.id": PRODUCER,
    "kafka.transaction.timeout.ms": PRODUCER,
    "kafka.key.serializer": PRODUCER,
    "kafka.delivery.timeout.ms": PRODUCER,
    "kafka.value.serializer": PRODUCER,
    "kafka.partitioner.class": PRODUCER,
    "kafka.max.block.ms": PRODUCER,
    "kafka.retries": "'kafka.retry.backoff.ms'",
    "queue.buffering.max.ms": PRODUCER,
    "message.timeout.ms": PRODUCER,
    "request.required.acks": PRODUCER,
    "compression.codec": PRODUCER,
    # Kafka's consumer
    "kafka.enable.auto.commit": COMMITS,
    "enableAutoCommit": COMMITS,
    "auto.commit.interval.ms": COMMITS,
    "kafka.auto.offset.reset": "'startingOffsets'",
    "autoOffsetReset": "'failOnDataLoss'",
    "kafka.key.deserializer": "cast('string')",
    "valueDeserializer": "from_json",
    "kafka.max.poll.records": BUFFER,
    "kafka.interceptor.classes": "Transform the rows",
    "kafka.default.api.timeout.ms": "'kafka.request.timeout.ms'",
    "kafka.exclude.internal.topics": "Remove it, or set 'includeInternalTopics' to true",
    "excludeInternalTopics": "Remove it, or set 'includeInternalTopics' to true",
    "kafka.allow.auto.create.topics": "never creates",
    "topic.blacklist": "'subscribePattern'",
    "maxRatePerPartition": "not those of a second",
    "unsubscribe": "when it stops",
    "kafka.metric.reporters": "progress",
    "ssl.truststore.password": "converts it to PEM",
    "kafka.ssl.keystore.password": "'kafka.ssl.key.password'",
    "kafka.ssl.protocol": "'kafka.ssl.enabled.protocols'",
    "kafka.security.providers": "no Java classes",
    "kafka.sasl.kerberos.keytab": KINIT,
    "kafka.consumer.group.id": "'kafka.group.id'",
    "consumer.fetch.min.bytes": PREFIX,
    "properties.group.id": PREFIX,
    "spring.kafka.bootstrap-servers": PREFIX,
    "admin.retries": "admin client",
    "producer.acks": "producer",
    # librdkafka
    "debug": LOGGING,
    "log_level": LOGGING,
    "statistics.interval.ms": LISTENER,
    "stats_cb": LISTENER,
    "error_cb": LISTENER,
    "on_commit": LISTENER,
    "rebalance_cb": LISTENER,
    "socket.timeout.ms": "'kafka.request.timeout.ms'",
    "socket.keepalive.enable": ITSELF,
    "socket.nagle.disable": ITSELF,
    "broker.address.family": ITSELF,
    "broker.version.fallback": ITSELF,
    "api.version.request": "asks each broker",
    "fetch.wait.max.ms": "fetch.max.wait",
    "receive.message.max.bytes": "'kafka.fetch.max.bytes'",
    "message.max.bytes": "'kafka.fetch.max.bytes'",
    "topic.metadata.refresh.interval.ms": "'kafka.metadata.max.age.ms'",
    "queued.min.messages": BUFFER,
    "queued.max.messages.kbytes": BUFFER,
    "enable.auto.offset.store": COMMITS,
    "offset.store.method": COMMITS,
    "enable.partition.eof": "availableNow",
    "socket.receive.buffer.bytes": "'kafka.receive.buffer.bytes'",
    "ssl.ca.location": "'kafka.ssl.truststore.location'",
    "ssl.certificate.location": "'kafka.ssl.keystore.location'",
    "ssl.key.location": "'kafka.ssl.keystore.location'",
    "ssl.key.pem": "'kafka.ssl.keystore.key'",
    "ssl.crl.location": STORES,
    "ssl.curves.list": ITSELF,
    "sasl.mechanisms": "'kafka.sasl.mechanism'",
    "sasl.oauthbearer.config": OAUTH,
    "sasl.oauthbearer.method": OAUTH,
    "sasl.oauthbearer.client.id": OAUTH,
    "enable.ssl.certificate.verification": "'kafka.ssl.truststore.location'",
    "plugin.library.paths": LISTENER,
    "client.software.name": ITSELF,
    "fetch.message.max.bytes": "'kafka.max.partition.fetch.bytes'",
    # kafka-python, aiokafka, pykafka
    "ssl_cafile": STORES,
    "ssl_certfile": STORES,
    "ssl_keyfile": STORES,
    "ssl_context": STORES,
    "ssl_ciphers": "suites'",
    "kafka.ssl": "'kafka.security.protocol' to SSL",
    "useSsl": "'kafka.security.protocol' to SSL",
    "kafka.tls.enabled": "'kafka.security.protocol' to SSL",
    "kafka.insecure": "certificate checks",
    "verify": "certificate checks",
    "kafka.ssl.truststore": STORES,
    "kafka.ssl.cert": STORES,
    "aws.region": "'Amazon MSK'",
    "awsRoleArn": "'Amazon MSK'",
    "aws_access_key_id": "'Amazon MSK'",
    "connectionString": "docs/compatibility.md",
    "ignoreDataLoss": "'failOnDataLoss' to false",
    "startingDate": "'startingTimestamp'",
    "maxRecordsPerTask": "'maxRecordsPerPartition'",
    "minRecordsPerPartition": "'minRecordsPerTask'",
    "rack": "'kafka.client.rack'",
    "kafka.instance.id": "'kafka.group.instance.id'",
    "connectTimeoutMs": "'kafka.socket.connection.setup.timeout.ms'",
    "kafka.sasl.client.secret": OAUTH,
    "autoCommit": COMMITS,
    "numRetries": "'kafka.retry.backoff.ms'",
    "checkpointDir": WRITER,
    "schemaRegistryUrl": REGISTRY,
    "ssl_password": "'kafka.ssl.key.password'",
    "ssl_check_hostname": "'kafka.ssl.endpoint.identification.algorithm'",
    "sasl_plain_username": "'kafka.sasl.username'",
    "sasl_plain_password": "'kafka.sasl.password'",
    "sasl_oauth_token_provider": "token.provider'",
    "sasl_kerberos_domain_name": KINIT,
    "value_deserializer": "from_json",
    "consumer_timeout_ms": "'kafkaConsumer.pollTimeoutMs'",
    "api_version": "asks each broker",
    "selector": ITSELF,
    "zookeeper_connect": "'kafka.bootstrap.servers'",
    "zookeeper.session.timeout.ms": "ZooKeeper",
    "auto_start": ITSELF,
    "use_rdkafka": ITSELF,
    "membership_protocol": "'kafka.partition.assignment.strategy'",
    # Flink, Connect, Streams, registries
    "scan.startup.mode": "'startingOffsets'",
    "scan.topic-partition-discovery.interval": "'kafka.metadata.max.age.ms'",
    "value.format": REGISTRY,
    "schema.registry.url": REGISTRY,
    "kafka.schema.registry.url": REGISTRY,
    "basic.auth.user.info": REGISTRY,
    "specific.avro.reader": REGISTRY,
    "auto.register.schemas": REGISTRY,
    "key.converter": REGISTRY,
    "application.id": "Kafka Streams",
    "processing.guarantee": "Kafka Streams",
    "confluent.monitoring.interceptor.topic": "Confluent",
    # brokers and topics
    "retention.ms": BROKERS,
    "advertised.listeners": BROKERS,
    "listener.name.internal.ssl.key": BROKERS,
    "auto.create.topics.enable": BROKERS,
    "min.insync.replicas": BROKERS,
    "cleanup.policy": BROKERS,
    "group.consumer.session.timeout.ms": BROKERS,
    "offsets.retention.minutes": BROKERS,
    "replication.factor": BROKERS,
    # nobody's
    "foo": PAGE,
    "kafka.foo.bar": PAGE,
    "batchInterval": "'minBatchInterval'",
    "kafka.sasl": PAGE,
    "timeout": PAGE,
    "kafka.ssl.store": PAGE,
    # earlier releases of this package
    "rebalanceCallback": "'startingOffsetsCallback'",
    "groupCommit.numRetries": "'offsetCommit.numRetries'",
    "pushDownFilters": "'startingTimestamp'",
}
"""Name -> a part of the answer."""

SPELLED = {
    "bootstrap.servers": "kafka.bootstrap.servers",
    "bootstrapServers": "kafka.bootstrap.servers",
    "kafka.bootstrap.server": "kafka.bootstrap.servers",
    "group.id": "kafka.group.id",
    "groupId": "kafka.group.id",
    "kafkaGroupId": "kafka.group.id",
    "kafkaBootstrapServers": "kafka.bootstrap.servers",
    "kafka.groupid": "kafka.group.id",
    "client_id": "kafka.client.id",
    "subscribes": "subscribe",
    "startingOffset": "startingOffsets",
    "starting_offsets": "startingOffsets",
    "endingOffset": "endingOffsets",
    "maxOffsetPerTrigger": "maxOffsetsPerTrigger",
    "minOffsetPerTrigger": "minOffsetsPerTrigger",
    "includeHeader": "includeHeaders",
    "failOnDataloss": "failOnDataLoss",
    "failOnDataLos": "failOnDataLoss",
    "kafka.session.timeout": "kafka.session.timeout.ms",
    "kafka.max.poll.interval": "kafka.max.poll.interval.ms",
    "kafka.isolation_level": "kafka.isolation.level",
    "security_protocol": "kafka.security.protocol",
    "sasl_mechanism": "kafka.sasl.mechanism",
    "kafka.sasl.jass.config": "kafka.sasl.jaas.config",
    "kafka.ssl.truststore.certificate": "kafka.ssl.truststore.certificates",
    "resetOffsetOnStart": "resetOffsetsOnStart",
    "partition_assignment_strategy": "kafka.partition.assignment.strategy",
}
"""Mistyped names, and the options that they mean."""


def answer(name: str) -> str:
    try:
        parse_options(GOOD | {name: "s3cret"})
    except OptionError as refused:
        return str(refused)
    return "no error"


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_for_a_name_of_others_is_right_and_short(name: str) -> None:
    said = answer(name)
    assert ANSWERS[name] in said
    assert "Did you mean" not in said
    assert "s3cret" not in said
    assert len(said) <= LONGEST, len(said)


def test_no_name_of_others_is_spelled_like_an_option() -> None:
    spelled = {letters(option.name) for option in OPTIONS}
    assert [name for name in UNSUPPORTED if letters(name) in spelled] == []


def test_there_are_enough_names() -> None:
    assert len(ANSWERS) + len(SPELLED) >= 150


@pytest.mark.parametrize("name", [name for name in SPELLED if name.lower() not in {o.name.lower() for o in OPTIONS}])
def test_a_mistyped_name_gets_the_option_that_it_means(name: str) -> None:
    assert error(GOOD | {name: "s3cret"})[1] == f"Did you mean '{SPELLED[name]}'?"


TURNED = (("min", "max"), ("starting", "ending"), ("include", "exclude"), ("send", "receive"), ("key", "trust"))


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_no_suggestion_turns_the_meaning_round(name: str) -> None:
    """An option with the opposite word gets no suggestion, also with a typing error in another word. Spark writes the
    names in lower case."""
    for one, opposite in (*TURNED, *(pair[::-1] for pair in TURNED)):
        turned = re.sub(rf"{one}(?![a-z])|{one}(?=[A-Z.]|store)", opposite, name)
        if turned == name:
            continue
        for written in (turned, turned.lower(), f"{turned}s".lower(), turned[:-1].lower()):
            found = nearest(written, (option.name for option in OPTIONS))
            if found is not None:
                assert opposite in found.lower(), (written, found)


def test_no_suggestion_changes_a_word() -> None:
    """Replaces each word of each option by an unlike one: no option is left that the name could mean."""
    suggested = []
    for option in OPTIONS:
        for word in set(re.findall(r"[A-Z]?[a-z]{4,}", option.name.removeprefix("kafka."))):
            changed = option.name.replace(word, "Quux" if word[0].isupper() else "quux")
            found = nearest(changed, (each.name for each in OPTIONS))
            suggested += [(changed, found)] if found else []
    assert suggested == []


@pytest.mark.parametrize(
    ("option", "text", "suggested"),
    [
        ("kafka.security.protocol", "SASL", None),
        ("kafka.security.protocol", "TLS", None),
        ("kafka.security.protocol", "PLAIN", "PLAINTEXT"),
        ("kafka.security.protocol", "SASL_PLAIN", "SASL_PLAINTEXT"),
        ("kafka.security.protocol", "SASL-SSL", "SASL_SSL"),
        ("kafka.sasl.mechanism", "SCRAM", None),
        ("kafka.sasl.mechanism", "SCRAM-SHA-1", None),
        ("kafka.sasl.mechanism", "SCRAM-SHA512", "SCRAM-SHA-512"),
        ("kafka.sasl.mechanism", "OAUTH", "OAUTHBEARER"),
        ("kafka.sasl.mechanism", "PLAINTEXT", None),
    ],
)
def test_a_suggested_protocol_or_mechanism_is_what_was_meant(option: str, text: str, suggested: str | None) -> None:
    _, action = error(GOOD | {"kafka.security.protocol": "SASL_SSL"} | {option: text})
    found = re.search(r"did you mean (\S+)\?", action)
    assert (found and found[1]) == suggested
    assert action.startswith("It must be one of ")


def test_the_distance_counts_letters() -> None:
    for one, other, count in (
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("abc", "abcd", 1),
        ("abc", "xbcd", 2),
        ("", "ab", 2),
    ):
        assert distance(one, other, 2) == distance(other, one, 2) == count
    assert distance("abcdef", "uvwxyz", 2) > 2
    assert distance("a", "abcd", 2) > 2
