"""Every key of Kafka's Java consumer is an option, or unsupported with a reason; none is ignored."""

from __future__ import annotations

import os

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.group.settings import Subscription
from spark_group_source.offsets import BatchOffset, OffsetRange
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.unsupported import UNSUPPORTED
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader
from spark_group_source.spark.tasks import Application, TaskPartition, TaskPlanner
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

WITHOUT_JAVA = {
    "kafka.source.host",
    "kafka.source.port",
    "kafka.sasl.username",
    "kafka.sasl.password",
    "kafka.sasl.oauthbearer.token.provider",
}
"""Options with the prefix ``kafka.`` that Kafka's Java client does not have."""


def test_every_key_of_the_java_consumer_is_an_option_or_unsupported() -> None:
    older = ["auto.include.jmx.reporter"]  # of Kafka 3.9
    assert [key for key in CONSUMER + older + SECURITY if (key in OPTION_KEYS) == (key in UNSUPPORTED)] == []


def test_every_kafka_option_is_a_key_of_the_java_consumer() -> None:
    assert {f"kafka.{key}" for key in OPTION_KEYS.difference(CONSUMER + SECURITY)} == WITHOUT_JAVA


def test_connection_options_reach_the_wire_settings() -> None:
    given = {
        "kafka.reconnect.backoff.ms": "20",
        "kafka.reconnect.backoff.max.ms": "300",
        "kafka.socket.connection.setup.timeout.ms": "4000",
        "kafka.socket.connection.setup.timeout.max.ms": "5000",
        "kafka.connections.max.idle.ms": "60000",
        "kafka.client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
        "kafka.receive.buffer.bytes": "65536",
        "kafka.send.buffer.bytes": "131072",
        "kafka.source.host": "10.0.0.7",
        "kafka.source.port": "40000-40099",
        "kafka.client.rack": "eu-1a",
        "groupOffsetFetch.timeoutMs": "7000",
    }
    group = parse_options(GOOD | given).group
    wire = group.wire
    assert (wire.reconnect_backoff, wire.reconnect_backoff_max) == (0.02, 0.3)
    assert (wire.connect_timeout, wire.connect_timeout_max, wire.max_idle) == (4.0, 5.0, 60.0)
    assert wire.canonical_bootstrap
    assert (wire.receive_buffer, wire.send_buffer) == (65536, 131072)
    assert (wire.source_host, wire.source_ports) == ("10.0.0.7", (40000, 40099))
    assert (wire.rack, group.offset_fetch_timeout) == ("eu-1a", 7.0)


def test_member_options_reach_the_group_settings() -> None:
    given = {
        "kafka.group.instance.id": "host-1",
        "kafka.partition.assignment.strategy": "range,sticky",
        "kafka.session.timeout.ms": "20000",
        "kafka.heartbeat.interval.ms": "1000",
        "kafka.max.poll.interval.ms": "60000",
        "kafka.request.timeout.ms": "7000",
        "kafka.metadata.max.age.ms": "40000",
    }
    settings = parse_options(GOOD | given).group
    assert (settings.group_id, settings.instance_id, settings.assignors) == ("g", "host-1", ("range", "sticky"))
    assert (settings.session_timeout, settings.heartbeat_interval, settings.rebalance_timeout) == (20.0, 1.0, 60.0)
    assert (settings.wire.request_timeout, settings.wire.metadata_max_age) == (7.0, 40.0)
    assert settings.subscription == Subscription(("t",))
    internal = parse_options(PATTERN | {"includeInternalTopics": "true"}).group.subscription
    assert internal == Subscription((), "t.*", True)


def partitions_of(given: dict[str, str], *ranges: OffsetRange) -> list[TaskPartition]:
    """The input partitions of a batch with these ranges."""
    reader = GroupStreamReader(parse_options(GOOD | given), source_schema(False), Application("app"))
    found = reader.partitions(BatchOffset().as_json(), BatchOffset.of(ranges).as_json())
    assert all(isinstance(each, TaskPartition) for each in found)
    return found  # type: ignore[return-value]


RANGE = OffsetRange("t", 0, 0, 10, "id")


def test_read_options_reach_the_tasks() -> None:
    given = {
        "kafka.request.timeout.ms": "7000",
        "kafka.client.id": "me",
        "kafka.check.crcs": "false",
        "kafka.isolation.level": "read_committed",
        "kafkaConsumer.pollTimeoutMs": "9000",
        "failOnDataLoss": "false",
    }
    ((task,), (default,)) = ([each.task for each in partitions_of(some, RANGE)] for some in (given, {}))
    assert (task.wire.request_timeout, task.wire.client_id, task.settings.poll_timeout) == (7.0, "me", 9.0)
    settings = task.settings
    assert (settings.check_crcs, settings.read_committed, settings.fail_on_data_loss) == (False, True, False)
    assert (default.wire.request_timeout, default.settings.poll_timeout) == (30.0, 120.0)
    settings = default.settings
    assert (settings.check_crcs, settings.read_committed, settings.fail_on_data_loss) == (True, False, True)


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
    def query_id(application: Application) -> str:
        planner = TaskPlanner(parse_options(GOOD), source_schema(False), application, "run 1")
        (partition,) = planner.plan([RANGE])
        assert isinstance(partition, TaskPartition)
        return partition.task.query_id

    assert query_id(Application("app")) == "run 1"
    assert query_id(Application("app", encrypts_files=True)) == ""


def test_fetch_options_reach_the_tasks() -> None:
    given = {
        "kafka.fetch.max.bytes": "8000000",
        "kafka.max.partition.fetch.bytes": "1000000",
        "kafka.fetch.min.bytes": "100000",
        "kafka.fetch.max.wait.ms": "250",
        "kafka.client.rack": "eu-1a",
        "kafka.metadata.max.age.ms": "60000",
    }
    (partition,) = partitions_of(given, RANGE)
    task, settings = partition.task, partition.task.settings
    assert (settings.max_bytes, settings.max_partition_fetch_bytes) == (8_000_000, 1_000_000)
    assert (settings.partition_max_bytes, settings.min_bytes, settings.max_wait) == (1_000_000, 100_000, 0.25)
    assert (task.wire.rack, task.wire.metadata_max_age) == ("eu-1a", 60.0)


def test_a_single_source_port_is_an_error() -> None:
    with pytest.raises(OptionError, match="'kafka.source.port' is '40000'.*a range.*several connections"):
        parse_options(GOOD | {"kafka.source.port": "40000"})
