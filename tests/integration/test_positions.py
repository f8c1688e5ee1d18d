"""Where a query starts, member or not: the driver's part on real Kafka, called as Spark calls it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from spark_group_source.errors import DataLoss, GroupError
from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.query.driver import Driver
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.drivers import drivers
from tests.integration.query_process import eventually
from tests.integration.standing import fill

DEADLINE = 90.0
Start = Callable[..., Driver]


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with five records each."""
    name = kafka.create_topic(unique("topic"), partitions=2)
    fill(kafka, name, 5)
    return name


@pytest.fixture
def start(kafka: EmbeddedKafka, topic: str, group: str) -> Iterator[Start]:
    """Starts a query of the test's group, with options and a checkpoint's offset."""
    base = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group,
        "startingOffsets": "earliest",
        "kafka.metadata.max.age.ms": "100",
    }
    with drivers(base) as begin:

        def start(logged: BatchOffset | None = None, **options: str) -> Driver:
            if "assign" not in options:
                options |= {"kafka.heartbeat.interval.ms": "100"}
                options |= {} if "subscribePattern" in options else {"subscribe": topic}
            return begin(logged, **options)

        yield start


def next_batch(query: Driver, end: BatchOffset) -> BatchOffset:
    """The next batch of a query that has completed the one that ends at ``end``."""
    deadline = time.monotonic() + DEADLINE
    while (batch := query.plan_batch(end, None)) == end:
        assert time.monotonic() < deadline, f"no batch within {DEADLINE} s"
    return batch


def ranges(batch: BatchOffset) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in batch.ranges.values()}


def finished_run(start: Start) -> BatchOffset:
    """A query that read everything there is and ended; where it stood."""
    query = start()
    end = query.plan_batch(BatchOffset(), None)
    assert ranges(end) == {0: (0, 5), 1: (0, 5)}
    assert query.plan_batch(end, None) is end
    query.close()
    return end


def test_reset_offsets_on_start_reads_from_starting_offsets_with_a_new_checkpoint(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start
) -> None:
    finished_run(start)
    query = start(resetOffsetsOnStart="true")
    assert kafka.committed(group, topic) == {(topic, 0): 0, (topic, 1): 0}
    assert ranges(query.plan_batch(BatchOffset(), None)) == {0: (0, 5), 1: (0, 5)}


def go_back_two(old: dict[str, dict[int, int]], new: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    return {topic: {0: partitions[0] - 2} for topic, partitions in new.items()}


def test_a_rebalance_callback_moves_the_start_and_the_group_gets_a_commit(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start
) -> None:
    finished_run(start)
    query = start(startingOffsetsCallback=f"{__name__}:go_back_two")
    assert kafka.committed(group, topic) == {(topic, 0): 3, (topic, 1): 5}
    (read,) = query.plan_batch(BatchOffset(), None).reads()
    assert (read.tp, read.start, read.end) == (TopicPartition(topic, 0), 3, 5)


def test_added_partitions_are_read_from_earliest_even_if_the_query_starts_at_latest(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start
) -> None:
    query = start(startingOffsets="latest")
    first = query.plan_batch(BatchOffset(), None)
    assert ranges(first) == {0: (5, 5), 1: (5, 5)}
    assert kafka.committed(group, topic) == {(topic, 0): 5, (topic, 1): 5}
    with kafka.admin() as admin:
        admin.create_partitions({topic: 3})
    eventually(lambda: len(kafka.end_offsets(topic)) == 3, what="the brokers to know of it")
    kafka.produce(topic, ["first"], partition=2)
    assert ranges(next_batch(query, first)) == {0: (5, 5), 1: (5, 5), 2: (0, 1)}


def test_a_topic_created_later_that_matches_the_pattern_is_read(
    kafka: EmbeddedKafka, start: Start, unique: Callable[[str], str]
) -> None:
    prefix = unique("pattern")
    first = kafka.create_topic(f"zz-{prefix}-a")
    kafka.produce(first, ["1"])
    query = start(subscribePattern=f"{prefix}-[ab]")
    end = query.plan_batch(BatchOffset(), None)
    assert end.ends() == {TopicPartition(first, 0): 1}
    kafka.create_topic(f"zz-{prefix}-c")
    second = kafka.create_topic(f"zz-{prefix}-b")
    kafka.produce(second, ["2"])
    assert next_batch(query, end).ends() == {TopicPartition(first, 0): 1, TopicPartition(second, 0): 1}


def test_a_recreated_topic_with_more_records_is_data_loss_or_read_from_earliest(
    kafka: EmbeddedKafka, topic: str, start: Start
) -> None:
    end = finished_run(start)
    kafka.delete_topic(topic)
    eventually(lambda: topic not in kafka.topics(), DEADLINE)
    kafka.create_topic(topic, partitions=2)
    fill(kafka, topic, 9)
    failing = start(logged=end)
    with pytest.raises(DataLoss, match=f"{topic} was deleted and recreated"):
        next_batch(failing, end)
    failing.close()
    query = start(logged=end, failOnDataLoss="false")
    assert ranges(next_batch(query, end)) == {0: (0, 9), 1: (0, 9)}


def test_a_group_with_members_fails_manual_assignment_at_the_start_and_rejects_later_commits(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    query = start(assign=f'{{"{topic}": [1]}}')
    start(subscribe=topic)
    end = query.plan_batch(BatchOffset(), None)
    assert query.plan_batch(end, None) is end
    assert "25 (UNKNOWN_MEMBER_ID): the group has members" in caplog.text
    with pytest.raises(GroupError, match=r"has 1 member\(s\): test at 127.0.0.1"):
        start(assign=f'{{"{topic}": [1]}}')
