"""The ages of a group's lag are the same on the fake Kafka and on a real one."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from spark_group_source.lag.client import GroupLagClient
from tests.contract.conftest import Bench, eventually
from tests.fake import FakeKafka
from tests.unit.records.build import marker

pytestmark = pytest.mark.one_protocol("classic", reason="the ages of a group do not depend on its protocol")

NOW = round(time.time())


def produce(bench: Bench, partition: int, *ages: float) -> None:
    """Writes a record of each of these ages, each in a batch of its own."""
    for age in ages:
        timestamp = round((NOW - age) * 1000)
        if isinstance(bench.kafka, FakeKafka):
            bench.kafka.produce(bench.topic, ["x"], partition, timestamp=timestamp)
        else:
            bench.kafka.produce(bench.topic, [(None, "x", None, timestamp)], partition)


def produce_in_transaction(bench: Bench, partition: int, age: float) -> None:
    """Writes a record of this age in a transaction, and the marker that commits it."""
    if isinstance(bench.kafka, FakeKafka):
        produce(bench, partition, age)
        bench.kafka.append(bench.topic, partition, marker(0, producer=7, commit=True), 1)
        return
    with bench.kafka.producer(transactional_id=bench.group) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(bench.topic, b"x", partition=partition, timestamp_ms=round((NOW - age) * 1000))
        producer.commit_transaction()


def delete_before(bench: Bench, partition: int, offset: int) -> None:
    if isinstance(bench.kafka, FakeKafka):
        bench.kafka.truncate(bench.topic, partition, offset)
        return
    from kafka import TopicPartition

    with bench.kafka.admin() as admin:
        admin.delete_records({TopicPartition(bench.topic, partition): offset})


@pytest.fixture
def ages(bench: Bench) -> Any:
    options = {
        "kafka.bootstrap.servers": bench.kafka.bootstrap_servers,
        "kafka.group.id": bench.group,
        "subscribe": bench.topic,
        "kafka.isolation.level": "read_committed",
    }
    with closing(GroupLagClient(options, 30.0, now=lambda: float(NOW))) as client:

        def look_up() -> dict[int, tuple[int, float | None]]:
            """The lag and the age of each partition."""
            return {each.tp.partition: (each.lag, each.age) for each in client.sample().partitions()}

        yield look_up


def test_ages_are_those_of_the_first_records_that_are_not_committed(
    bench: Bench, ages: Callable[[], dict[int, tuple[int, float | None]]]
) -> None:
    produce(bench, 0, 3000, 2000, 1000.25, 100)
    produce(bench, 1, 50, 500)
    bench.rewind({0: 2, 1: 0, 2: 0})
    assert ages() == {0: (2, 1000.25), 1: (2, 50.0), 2: (0, 0.0)}
    bench.rewind({0: 4, 1: 1})
    assert ages() == {0: (0, 0.0), 1: (1, 500.0), 2: (0, 0.0)}
    produce(bench, 2, -30)
    assert ages()[2] == (1, 0.0), "a clock ahead of this one"


def test_the_first_remaining_record_counts_and_a_marker_does_not(
    bench: Bench, ages: Callable[[], dict[int, tuple[int, float | None]]]
) -> None:
    produce(bench, 0, 3000, 2000, 1000)
    produce_in_transaction(bench, 1, 3000)
    delete_before(bench, 0, 2)
    bench.rewind({0: 0, 1: 1})
    eventually(lambda: ages()[0][0] == 3, "the lag")
    assert ages() == {0: (3, 1000.0), 1: (1, 0.0)}
    produce(bench, 1, 20)
    assert ages()[1] == (2, 20.0)
