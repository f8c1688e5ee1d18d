"""Every key of Kafka's Java consumer is an option, or unsupported with a reason; none is ignored."""

from __future__ import annotations

import os
from dataclasses import replace
from operator import attrgetter

from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import BatchOffset, OffsetRange
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.unsupported_names import UNSUPPORTED
from spark_group_source.spark.application import Application
from spark_group_source.spark.batch import GroupBatchReader
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader
from spark_group_source.spark.tasks import TaskPartition, TaskPlanner
from tests.fake import FakeKafka
from tests.unit.options.test_options import GOOD, PATTERN

OPTION_KEYS = {option.name.removeprefix("kafka.") for option in OPTIONS if option.name.startswith("kafka.")}

_CONSUMER = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs client.dns.lookup
client.id client.rack connections.max.idle.ms default.api.timeout.ms enable.auto.commit enable.metrics.push
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes internal.leave.group.on.close
internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer max.partition.fetch.bytes
max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms share.acknowledgement.mode
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms value.deserializer
"""
CONSUMER = _CONSUMER.split()
"""``ConsumerConfig.configNames()`` of Kafka 4.1, without those below."""

_SECURITY = """
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
security.protocol security.providers ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type
"""
SECURITY = _SECURITY.split()
"""The security keys of ``ConsumerConfig``."""

WITHOUT_JAVA = {"kafka.source.host", "kafka.source.port", "kafka.sasl.username", "kafka.sasl.password"}
WITHOUT_JAVA |= {"kafka.sasl.oauthbearer.token.provider"}
"""Options with the prefix ``kafka.`` that Kafka's Java client does not have."""


def test_every_key_of_the_java_consumer_is_an_option_or_unsupported() -> None:
    older = ["auto.include.jmx.reporter"]  # of Kafka 3.9
    assert [key for key in CONSUMER + older + SECURITY if (key in OPTION_KEYS) == (key in UNSUPPORTED)] == []


def test_every_kafka_option_is_a_key_of_the_java_consumer() -> None:
    assert {f"kafka.{key}" for key in OPTION_KEYS.difference(CONSUMER + SECURITY)} == WITHOUT_JAVA


PLACES: dict[str, tuple[str, str, object]] = {
    "minOffsetsPerTrigger": ("10", "min_offsets_per_trigger", 10),
    "maxOffsetsPerTrigger": ("10", "max_offsets_per_trigger", 10),  # the same number fits
    "kafka.client.id": ("me", "wire.client_id", "me"),
    "kafka.group.instance.id": ("host-1", "group.instance_id", "host-1"),
    "kafka.partition.assignment.strategy": ("range,sticky", "group.assignors", ("range", "sticky")),
    "kafka.session.timeout.ms": ("20000", "group.session_timeout", 20.0),
    "kafka.heartbeat.interval.ms": ("1000", "group.heartbeat_interval", 1.0),
    "kafka.max.poll.interval.ms": ("60000", "group.rebalance_timeout", 60.0),
    "groupOffsetFetch.timeoutMs": ("7500", "group.offset_fetch_timeout", 7.5),
    "kafka.request.timeout.ms": ("7000", "wire.request_timeout", 7.0),
    "kafka.metadata.max.age.ms": ("40000", "wire.metadata_max_age", 40.0),
    "kafka.retry.backoff.ms": ("30", "wire.retry_backoff", 0.03),
    "kafka.retry.backoff.max.ms": ("400", "wire.retry_backoff_max", 0.4),
    "kafka.reconnect.backoff.ms": ("20", "wire.reconnect_backoff", 0.02),
    "kafka.reconnect.backoff.max.ms": ("300", "wire.reconnect_backoff_max", 0.3),
    "kafka.socket.connection.setup.timeout.ms": ("4000", "wire.connect_timeout", 4.0),
    "kafka.socket.connection.setup.timeout.max.ms": ("5000", "wire.connect_timeout_max", 5.0),
    "kafka.connections.max.idle.ms": ("61000", "wire.max_idle", 61.0),
    "kafka.client.dns.lookup": ("resolve_canonical_bootstrap_servers_only", "wire.canonical_bootstrap", True),
    "kafka.receive.buffer.bytes": ("65536", "wire.receive_buffer", 65536),
    "kafka.send.buffer.bytes": ("131072", "wire.send_buffer", 131072),
    "kafka.source.host": ("10.0.0.7", "wire.source_host", "10.0.0.7"),
    "kafka.source.port": ("40000-40099", "wire.source_ports", (40000, 40099)),
    "kafka.client.rack": ("eu-1a", "wire.rack", "eu-1a"),
    "kafka.check.crcs": ("false", "fetch.check_crcs", False),
    "kafka.isolation.level": ("read_committed", "fetch.read_committed", True),
    "kafkaConsumer.pollTimeoutMs": ("9000", "fetch.poll_timeout", 9.0),
    "failOnDataLoss": ("false", "fetch.fail_on_data_loss", False),
    "kafka.fetch.max.bytes": ("8000000", "fetch.max_bytes", 8_000_000),
    "kafka.max.partition.fetch.bytes": ("1000000", "fetch.partition_max_bytes", 1_000_000),
    "kafka.fetch.min.bytes": ("100000", "fetch.min_bytes", 100_000),
    "kafka.fetch.max.wait.ms": ("250", "fetch.max_wait", 0.25),
}
"""Option -> a text, the field that it sets, and its value."""


def test_each_option_has_its_own_field_and_reaches_the_member_and_the_tasks() -> None:
    given = {name: text for name, (text, _, _) in PLACES.items()}
    parsed, default = parse_options(GOOD | given), parse_options(GOOD)
    for name, (_, place, value) in PLACES.items():
        assert attrgetter(place)(parsed) == value != attrgetter(place)(default), name
    assert parsed.group.wire == parsed.wire
    (partition,) = partitions_of(given, RANGE)
    assert (partition.task.wire, partition.task.settings) == (parsed.with_client_id("me").wire, parsed.fetch)
    internal = parse_options(PATTERN | {"includeInternalTopics": "true"}).group.subscription
    assert internal == Subscription((), "t.*", True)


def partitions_of(given: dict[str, str], *ranges: OffsetRange) -> list[TaskPartition]:
    """The input partitions of a batch with these ranges."""
    reader = GroupStreamReader(parse_options(GOOD | given), source_schema(False), Application("app"))
    found = reader.partitions(BatchOffset().as_json(), BatchOffset.from_ranges(ranges).as_json())
    assert all(isinstance(each, TaskPartition) for each in found)
    return found  # type: ignore[return-value]


RANGE = OffsetRange("t", 0, 0, 10, "id")


def test_tasks_of_a_stream_and_of_a_batch_query_know_their_cluster() -> None:
    reader = GroupStreamReader(parse_options(GOOD), source_schema(False), Application("app"))
    logged = replace(BatchOffset.from_ranges([RANGE]), cluster="cluster 1").as_json()
    (partition,) = reader.partitions(BatchOffset().as_json(), logged)
    assert isinstance(partition, TaskPartition)
    assert partition.task.cluster_id == "cluster 1"
    with FakeKafka() as fake:
        fake.produce(fake.create_topic("t"), ["a"])
        options = parse_options({"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"})
        (partition,) = GroupBatchReader(options, source_schema(False), Application("app"), []).partitions()
        assert isinstance(partition, TaskPartition)
        assert partition.task.cluster_id == fake.cluster_id


def test_task_size_options_reach_the_task_splitting() -> None:
    ranges = [OffsetRange("t", number, 0, 10, "id") for number in range(4)]
    assert len(partitions_of({}, *ranges)) == 1
    assert len(partitions_of({"minRecordsPerTask": "20"}, *ranges)) == 2
    assert len(partitions_of({"maxRecordsPerPartition": "5"}, *ranges)) == 8
    assert len(partitions_of({"minPartitions": "6"}, *ranges)) == 8  # the same number of each


def test_the_default_client_id_has_application_topics_or_pattern_and_process() -> None:
    (named,) = partitions_of({}, RANGE)
    assert named.task.wire.client_id == f"app-t-{os.getpid()}"
    parsed = parse_options(PATTERN | {"subscribePattern": "x.*y"})
    planner = TaskPlanner(parsed, source_schema(False), Application("app"))
    assert planner.options.wire.client_id == f"app-x.-y-{os.getpid()}"
    parsed = parse_options(GOOD | {"subscribe": "t" * 249})
    planner = TaskPlanner(parsed, source_schema(False), Application("app", "local-1"))
    assert planner.options.wire.client_id == f"app-{'t' * 146}-local-1-{os.getpid()}", "what is too long is the topic"


def test_tasks_keep_records_in_files_unless_spark_encrypts_its_files() -> None:
    for encrypts_files, query_id in ((False, "run 1"), (True, "")):
        application = Application("app", encrypts_files=encrypts_files)
        (partition,) = TaskPlanner(parse_options(GOOD), source_schema(False), application, "run 1").plan([RANGE], "")
        assert isinstance(partition, TaskPartition)
        assert partition.task.query_id == query_id
