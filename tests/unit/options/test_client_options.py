"""Every key of Kafka's Java consumer is an option, or unsupported with a reason; none is ignored."""

from __future__ import annotations

import os
from dataclasses import replace

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


def test_the_settings_of_connections_and_tasks_reach_the_tasks() -> None:
    given = {"kafka.client.id": "me", "kafka.client.rack": "eu-1a", "kafka.check.crcs": "false"}
    parsed = parse_options(GOOD | given)
    (partition,) = partitions_of(given, RANGE)
    assert (partition.task.wire, partition.task.settings) == (parsed.with_client_id("me").wire, parsed.fetch)
    assert (partition.task.wire.rack, partition.task.settings.check_crcs) == ("eu-1a", False)


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
