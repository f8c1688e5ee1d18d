"""The minimum and the maxima of a batch together, planned on a fake Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.query.driver import Driver
from tests.drivers import drivers
from tests.fake import FakeKafka

SIZE = 1000
LIMIT = 10 * SIZE
TP = TopicPartition("t", 0)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t", partitions=1)
        yield running


@pytest.fixture
def start(fake: FakeKafka) -> Iterator[Callable[..., Driver]]:
    base = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "subscribe": "t",
        "startingOffsets": "earliest",
    }
    with drivers(base) as begin:
        yield begin


def produce(fake: FakeKafka, count: int, size: int = SIZE) -> None:
    for _ in range(count):
        fake.produce("t", ["x" * size])


def test_batches_of_large_records_keep_the_limit_although_all_before_them_were_small(
    fake: FakeKafka, start: Callable[..., Driver]
) -> None:
    driver, limit, end = start(), 500_000, BatchOffset()
    for _ in range(20):
        produce(fake, 10, size=10)
        driver._planner.end_offsets.expire()
        end = driver.plan_batch(end, None, limit)
    assert end.ends() == {TP: 200}
    produce(fake, 200, size=20_000)
    driver._planner.end_offsets.expire()
    sizes = []
    while end.ends()[TP] < 400:
        end = driver.plan_batch(end, None, limit)
        (read,) = end.reads()
        sizes.append(20_000 * read.size)
    assert max(sizes) <= 2 * limit
    assert len(sizes) >= 8


def test_a_batch_waits_for_the_minimum_or_the_delay_and_then_has_at_most_the_bytes_of_the_limit(
    fake: FakeKafka, start: Callable[..., Driver]
) -> None:
    driver = start(minOffsetsPerTrigger="50", maxTriggerDelay="1h")
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
