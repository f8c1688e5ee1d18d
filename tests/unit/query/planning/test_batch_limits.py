"""The minimum and the maxima of a batch together, planned on a fake Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.testing.fake import FakeKafka
from tests.drivers import drivers

SIZE = 1000
LIMIT = 10 * SIZE
TP = TopicPartition("t", 0)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t", partitions=1)
        yield running


def produce(fake: FakeKafka, count: int) -> None:
    for _ in range(count):
        fake.produce("t", ["x" * SIZE])


def test_a_batch_waits_for_the_minimum_or_the_delay_and_then_has_at_most_the_bytes_of_the_limit(
    fake: FakeKafka,
) -> None:
    options = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "50",
        "maxTriggerDelay": "1h",
    }
    with drivers(options) as start:
        driver = start()
        planner = driver._planner
        produce(fake, 1)
        first = driver.plan_batch(BatchOffset(), None, LIMIT)
        assert first.ends() == {TP: 1}, "the first batch never waits"
        produce(fake, 49)
        planner.end_offsets.expire()
        assert driver.plan_batch(first, None, LIMIT) is first
        planner._planned_at -= 3500
        assert driver.plan_batch(first, None, LIMIT) is first
        planner._planned_at -= 100
        delayed = driver.plan_batch(first, None, LIMIT)
        assert delayed.ends()[TP] == pytest.approx(10, abs=1)
        produce(fake, 20)
        planner.end_offsets.expire()
        assert driver.plan_batch(delayed, None, LIMIT).ends()[TP] == pytest.approx(19, abs=2)
