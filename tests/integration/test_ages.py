"""Ages of the lag beside the truth, on a real Kafka: what a consumer reads at the group's committed offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.model import PartitionLag
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process
from tests.integration.conftest import Read, Stream
from tests.integration.query_process import source_options
from tests.integration.standing import Producing

Lookup = Callable[[], dict[int, PartitionLag]]
eventually = partial(query_process.eventually, deadline=120)

EXACT = 1.0
"""Seconds by which an age may differ from the truth."""


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    return kafka.create_topic(unique("topic"), partitions=2)


@pytest.fixture
def lookup(kafka: EmbeddedKafka, topic: str, group: str) -> Iterator[Callable[..., Lookup]]:
    """Looks the group up: ``lookup(**options)()``."""
    clients: list[GroupLagClient] = []

    def begin(**options: str) -> Lookup:
        client = GroupLagClient(source_options(kafka, topic, group, **options), 30.0)
        clients.append(client)
        return lambda: {each.tp.partition: each for each in client.sample().partitions()}

    yield begin
    for each in clients:
        each.close()


def commit(kafka: EmbeddedKafka, group: str, topic: str, **offsets: int) -> None:
    """Commits offsets of a group without members: ``p0=3``."""
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    wanted = {TopicPartition(topic, int(name[1:])): OffsetAndMetadata(at, "", -1) for name, at in offsets.items()}
    kafka.committed(group)  # waits for the coordinator
    with kafka.admin() as admin:
        admin.alter_group_offsets(group, wanted)


def true_age(kafka: EmbeddedKafka, topic: str, partition: int, offset: int) -> float:
    """The age of the record that a consumer of kafka-python reads first from this offset on."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None, consumer_timeout_ms=30_000)
    with closing(consumer):
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        timestamp: int = next(consumer).timestamp
        return time.time() - timestamp / 1000


def assert_true(kafka: EmbeddedKafka, found: PartitionLag, looked_up_at: float) -> None:
    truth = true_age(kafka, found.tp.topic, found.tp.partition, found.position) - (time.time() - looked_up_at)
    assert found.age == pytest.approx(truth, abs=EXACT)


@pytest.mark.core
def test_ages_of_a_busy_an_idle_and_a_stopped_query(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, read: Read, lookup: Callable[..., Lookup]
) -> None:
    ages = lookup()
    with Producing(kafka, topic, 1):
        reader = read(stream(topic), held=True)
        eventually(lambda: reader.read_by_held)
        eventually(lambda: ages()[0].lag >= 30)
        found, at = ages()[0], time.time()
        assert found.age is not None
        assert found.age >= found.lag / 10 - EXACT - 0.5, "at most ten records a second"
        assert_true(kafka, found, at)
        assert ages()[1].age == 0.0, "nothing was ever written"
    reader.may_end.set()
    eventually(lambda: [each.age for each in ages().values()] == [0.0, 0.0], what="the idle query")
    reader.stop()
    kafka.produce(topic, [(None, "x", None, round((time.time() - 100) * 1000))], partition=1)
    found, at = ages()[1], time.time()
    assert found.lag == 1
    assert found.age == pytest.approx(100, abs=EXACT)
    assert_true(kafka, found, at)
    time.sleep(0.5)
    assert (ages()[1].age or 0.0) >= (found.age or 0.0) + 0.5, "it ages while nothing happens"


def test_the_brokers_clock_counts_with_log_append_time(
    kafka: EmbeddedKafka, group: str, unique: Callable[[str], str]
) -> None:
    topic = kafka.create_topic(unique("topic"), config={"message.timestamp.type": "LogAppendTime"})
    kafka.produce(topic, [(None, "x", None, 1_000_000)] * 2)
    commit(kafka, group, topic, p0=1)
    with closing(GroupLagClient(source_options(kafka, topic, group))) as client:
        (found,) = client.sample().partitions()
    assert found.age is not None
    assert found.age < 60


def test_open_and_aborted_transactions(
    kafka: EmbeddedKafka, topic: str, group: str, unique: Callable[[str], str], lookup: Callable[..., Lookup]
) -> None:
    committed, uncommitted = lookup(**{"kafka.isolation.level": "read_committed"}), lookup()
    now = round(time.time() * 1000)
    age: Any = partial(pytest.approx, abs=30)
    commit(kafka, group, topic, p0=0)
    with kafka.producer(transactional_id=unique("writer")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0, timestamp_ms=now - 3_000_000)
        producer.flush()
        producer.abort_transaction()
        assert committed()[0].age == 0.0, "no record is left for it"
        assert uncommitted()[0].age == age(3000)
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0, timestamp_ms=now - 2_000_000)
        producer.flush()
        kafka.produce(topic, [(None, "after it", None, now - 1_000_000)], partition=0)
        commit(kafka, group, topic, p0=2)
        assert (committed()[0].lag, committed()[0].age) == (0, 0.0), "it cannot be read yet"
        assert uncommitted()[0].age == age(2000)
        producer.commit_transaction()
    eventually(lambda: committed()[0].age == age(2000), what="the age of the committed record")
    commit(kafka, group, topic, p0=3)
    assert committed()[0].age == age(1000)
