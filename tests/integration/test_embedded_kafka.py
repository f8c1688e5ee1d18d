"""The embedded Kafka does what tests and the demo rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka, broker_cluster
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.ports import free_ports

if TYPE_CHECKING:
    import confluent_kafka

TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedKafka]:
    """A Kafka that tests of this module may stop."""
    with EmbeddedKafka() as running:
        yield running


def member(kafka: EmbeddedKafka, topic: str, group: str, protocol: str = "classic") -> confluent_kafka.Consumer:
    """A consumer in the group (librdkafka: kafka-python's may forget to join again)."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    return consumer


def consume(kafka: EmbeddedKafka, topic: str, group: str, count: int) -> None:
    """Reads and commits as a member of the group, then leaves it."""
    consumer = member(kafka, topic, group)
    deadline = Deadline.after(TIMEOUT_S)
    try:
        while count > 0:
            assert not deadline.expired()
            record = consumer.poll(0.2)
            count -= record is not None and not record.error()
        places = consumer.position(consumer.assignment())
        for place in places:
            place.offset = max(place.offset, 0)  # Negative where nothing was read.
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()


def test_produce_returns_partitions_and_offsets_and_works_with_every_codec(
    kafka: EmbeddedKafka, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    assert kafka.produce(name, ["a", b"b", ("key", None)], partition=1) == [(1, 0), (1, 1), (1, 2)]
    assert kafka.produce(name, [("key", "value")], partition=0) == [(0, 0)]
    assert kafka.end_offsets(name) == {0: 1, 1: 3}
    for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd"), 1):
        kafka.produce(name, ["x" * 100] * 10, partition=0, compression_type=codec)
        assert kafka.end_offsets(name)[0] == 1 + 10 * number


def test_offsets_and_lag_are_those_of_kafkas_tool(kafka: EmbeddedKafka, topic: Callable[..., str], group: str) -> None:
    name = topic(partitions=2)
    kafka.produce(name, ["x"] * 5, partition=0)
    consume(kafka, name, group, 5)
    kafka.produce(name, ["x"] * 2, partition=0)
    shown = [line.split() for line in kafka.consumer_groups("--describe", "--group", group).splitlines()]
    assert sorted(each[2:6] for each in shown if name in each) == [["0", "5", "7", "2"], ["1", "0", "0", "0"]]
    assert kafka.committed(group) == {(name, 0): 5, (name, 1): 0}
    assert kafka.lag(group, name) == {0: 2, 1: 0}
    assert kafka.lag(f"{group}-unknown", name) == {0: 7, 1: 0}
    assert group not in kafka.active_groups()
    assert kafka.group_state(group) == "Empty"
    with pytest.raises(EmbeddedKafkaError, match=f"Group {group}-unknown not found"):
        kafka.consumer_groups("--describe", "--group", f"{group}-unknown")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_the_same_by_request_and_by_kafkas_tool(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, protocol: str
) -> None:
    assert (kafka.group_state(group), kafka.members(group)) == ("Dead", [])
    consumer = member(kafka, topic(partitions=3), group, protocol)
    try:
        deadline = Deadline.after(TIMEOUT_S)
        while [each.partitions for each in kafka.members(group)] != [3]:
            assert not deadline.expired()
            consumer.poll(0.1)
        members = kafka.members(group)
        shown = kafka.consumer_groups("--describe", "--group", group, "--members").splitlines()[-1].split()
        assert [(each.consumer_id, each.client_id) for each in members] == [(shown[1], shown[3])]
        assert kafka.group_state(group) == "Stable"
        assert group in kafka.active_groups()
    finally:
        consumer.close()
    assert (kafka.group_state(group), kafka.members(group)) == ("Empty", [])


def test_a_new_topic_of_many_partitions_has_all_its_logs(kafka: EmbeddedKafka, topic: Callable[..., str]) -> None:
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    name = topic(200)
    specs = {TopicPartition(name, number): OffsetSpec.EARLIEST for number in range(200)}
    with kafka.admin() as admin:
        # Without time to ask again for partitions whose log is missing.
        assert len(admin.list_partition_offsets(specs, timeout_ms=1)) == 200
    kafka.delete_topic(name)


def test_data_and_port_survive_a_restart(own: EmbeddedKafka, unique: Callable[[str], str]) -> None:
    name, group = own.create_topic(unique("topic"), 2), unique("group")
    own.produce(name, ["x"] * 10, partition=1)
    consume(own, name, group, 10)
    servers, pid = own.bootstrap_servers, own.pid()
    own.kill()
    assert own.pid() is None
    own.start()
    assert own.bootstrap_servers == servers
    assert own.pid() not in (None, pid)
    assert own.end_offsets(name) == {0: 0, 1: 10}
    assert own.committed(group) == {(name, 0): 0, (name, 1): 10}


def test_a_paused_broker_responds_after_resume(own: EmbeddedKafka, unique: Callable[[str], str]) -> None:
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    name = own.create_topic(unique("topic"))
    own.pause()
    try:
        with pytest.raises(KafkaError):
            KafkaAdminClient(bootstrap_servers=own.bootstrap_servers, bootstrap_timeout_ms=500, request_timeout_ms=500)
    finally:
        own.resume()
    assert own.end_offsets(name) == {0: 0}


def test_open_and_create_topic_may_be_repeated(own: EmbeddedKafka, unique: Callable[[str], str]) -> None:
    from kafka.errors import TopicAlreadyExistsError

    name = unique("topic")
    servers, pid, directory = own.bootstrap_servers, own.pid(), own.directory
    for _ in range(2):  # as a notebook's cell that runs again
        own.open()
        assert own.create_topic(name, partitions=2, exist_ok=True) == name
    assert (own.bootstrap_servers, own.pid(), own.directory) == (servers, pid, directory)
    assert own.end_offsets(name) == {0: 0, 1: 0}
    with pytest.raises(TopicAlreadyExistsError):
        own.create_topic(name, partitions=2)


def test_the_error_of_a_broker_that_cannot_start_has_the_reason() -> None:
    broken = EmbeddedKafka(config={"num.network.threads": "0"})
    with pytest.raises(EmbeddedKafkaError, match=r"Invalid value 0 for .*num\.network\.threads"), broken:
        pass


def test_a_cluster_replaces_ports_in_use_has_a_port_for_each_listener_and_leaves_no_files(
    monkeypatch: pytest.MonkeyPatch, kafka: EmbeddedKafka
) -> None:
    from kafka.admin import KafkaAdminClient

    taken = int(kafka.bootstrap_servers.split(":")[1])
    choices = iter([[taken, *free_ports(2)]])
    monkeypatch.setattr(broker_cluster, "free_ports", lambda count: next(choices, None) or free_ports(count))
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="pw";'
    config = {
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain,
    }
    with EmbeddedKafka(listeners=["SASL_PLAINTEXT"], config=config) as running:
        assert running.bootstrap_servers != kafka.bootstrap_servers
        running.create_topic("flights")
        admin = KafkaAdminClient(
            bootstrap_servers=running.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="ann",
            sasl_plain_password="pw",
        )
        assert admin.list_topics() == ["flights"]
        admin.close()
        assert list(running.directory.iterdir())
    assert not running.directory.exists()
