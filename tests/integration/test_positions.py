"""Where a query starts and how much a batch takes: the driver's part on real Kafka, called as Spark calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_group_source.driver import Driver
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options import parse_options
from spark_group_source.testing.kafka import EmbeddedKafka
from spark_group_source.wire.settings import WireOptions

Start = Callable[..., Driver]


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with five records each."""
    name = kafka.create_topic(unique("topic"), partitions=2)
    for number in range(2):
        kafka.produce(name, [f"v{record}" for record in range(5)], partition=number)
    return name


@pytest.fixture
def start(kafka: EmbeddedKafka, topic: str, group: str) -> Iterator[Start]:
    """Starts a query of the test's group, with options and a checkpoint's offset."""
    running = []

    def begin(logged: BatchOffset | None = None, **options: Any) -> Driver:
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": group, "subscribe": topic}
        parsed = parse_options(given | {"startingOffsets": "earliest"} | options)
        running.append(Driver(parsed, WireOptions(parsed.bootstrap_servers, "test")))
        running[-1].start(logged or BatchOffset())
        running[-1].await_share()
        return running[-1]

    yield begin
    for each in running:
        each.close()


def ranges(batch: BatchOffset) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in batch.ranges.values()}


def finished_run(start: Start) -> BatchOffset:
    """A query that read everything there is and ended; where it stood."""
    query = start()
    end = query.latest(BatchOffset(), None)
    assert ranges(end) == {0: (0, 5), 1: (0, 5)}
    assert query.latest(end, None) is end
    query.close()
    return end


def test_reset_offsets_on_start_reads_from_starting_offsets_with_a_new_checkpoint(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start
) -> None:
    finished_run(start)
    query = start(resetOffsetsOnStart="true")
    assert kafka.committed(group, topic) == {(topic, 0): 0, (topic, 1): 0}
    assert ranges(query.latest(BatchOffset(), None)) == {0: (0, 5), 1: (0, 5)}


def test_reset_offsets_on_start_leaves_a_query_with_a_checkpoint_alone(start: Start) -> None:
    end = finished_run(start)
    query = start(logged=end, resetOffsetsOnStart="true")
    assert query.latest(end, None) is end


def go_back_two(old: dict[str, dict[int, int]], new: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    return {topic: {0: partitions[0] - 2} for topic, partitions in new.items()}


def test_a_rebalance_callback_moves_the_start_and_the_group_is_told(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start
) -> None:
    finished_run(start)
    query = start(rebalanceCallback=f"{__name__}:go_back_two")
    assert kafka.committed(group, topic) == {(topic, 0): 3, (topic, 1): 5}
    assert query.latest(BatchOffset(), None).reads() == [
        OffsetRange(topic, 0, 3, 5, next(iter(query.latest(BatchOffset(), None).ranges.values())).topic_id)
    ]


def test_min_offsets_holds_records_back_until_there_are_enough_but_not_in_the_first_batch(
    kafka: EmbeddedKafka, topic: str, start: Start
) -> None:
    query = start(minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    end = query.latest(BatchOffset(), None)
    assert ranges(end) == {0: (0, 5), 1: (0, 5)}
    kafka.produce(topic, [f"v{record}" for record in range(99)], partition=0)
    assert query.latest(end, None) is end
    kafka.produce(topic, ["one more"], partition=1)
    while (now := query.latest(end, None)) is end:
        pass
    assert ranges(now) == {0: (5, 104), 1: (5, 6)}


def test_max_trigger_delay_ends_the_waiting(kafka: EmbeddedKafka, topic: str, start: Start) -> None:
    query = start(minOffsetsPerTrigger="100", maxTriggerDelay="300ms")
    end = query.latest(BatchOffset(), None)
    kafka.produce(topic, ["one"], partition=0)
    while (now := query.latest(end, None)) is end:
        pass
    assert now.ends() == {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 5}
