"""A batch is committed when Spark has completed it, whatever the trigger: real Kafka, real Spark."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_group_source.spark import notifications
from spark_group_source.testing import EmbeddedKafka
from tests.integration import query_process
from tests.integration.standing import caught_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

eventually = partial(query_process.eventually, deadline=60)

LONG = {"processingTime": "10 minutes"}
SOON_S = 10
"""In which a batch must be committed, far below the trigger's interval. Less than 0.3 s are normal."""


class Sink:
    """Keeps the values of completed batches; one that is to fail fails after it was read."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.failing = False

    def __call__(self, batch: DataFrame, number: int) -> None:
        read = [bytes(row.value).decode() for row in batch.select("value").collect()]
        if self.failing:
            raise ValueError("this batch fails")
        self.values += read


Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Start]:
    """Starts a query of a topic into a sink, and stops it at the end."""
    queries: list[StreamingQuery] = []

    def one(sink: Sink, topic: str, *groups: str, checkpoint: str = "checkpoint", **trigger: Any) -> StreamingQuery:
        options = [query_process.source_options(kafka, topic, group) for group in groups]
        first, *others = (spark.readStream.format("kafka-group").options(**each).load() for each in options)
        for other in others:
            first = first.union(other)
        writer = first.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / checkpoint))
        queries.append(writer.trigger(**trigger or LONG).start())
        return queries[-1]

    yield one
    for query in queries:
        query.stop()


@pytest.fixture
def name(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of three partitions with four records each."""
    topic = kafka.create_topic(unique("topic"), partitions=3)
    fill(kafka, topic)
    return topic


def fill(kafka: EmbeddedKafka, topic: str, count: int = 4) -> None:
    for partition in range(3):
        kafka.produce(topic, [f"v{partition}-{number}" for number in range(count)], partition=partition)


def cut_off_readers() -> None:
    server = notifications._servers[-1]
    with server._lock:
        for reader in list(server._readers):
            server._drop(reader)


@pytest.mark.core
def test_a_batch_is_committed_when_it_ends_and_its_partitions_move_before_the_next_trigger(
    kafka: EmbeddedKafka, name: str, group: str, start: Start
) -> None:
    first, second = Sink(), Sink()
    start(first, name, group)
    eventually(lambda: len(first.values) == 12)
    print(f"committed after {eventually(lambda: caught_up(kafka, name, group), deadline=SOON_S):.2f} s")
    start(second, name, group, checkpoint="second", processingTime="0 seconds")
    took = eventually(
        lambda: sorted(each.partitions for each in kafka.members(group)) in ([1, 2], [2, 1]), deadline=2 * SOON_S
    )
    print(f"a second member owned its partitions {took:.2f} s after its start")
    assert second.values == []


@pytest.mark.core
@pytest.mark.parametrize("trigger", [{"once": True}, {"availableNow": True}, LONG])
def test_a_new_checkpoint_reads_nothing_again_after_a_query_that_ended(
    kafka: EmbeddedKafka, name: str, group: str, start: Start, trigger: dict[str, Any]
) -> None:
    sink = Sink()
    query = start(sink, name, group, **trigger)
    eventually(lambda: len(sink.values) == 12)
    if trigger is LONG:
        eventually(lambda: len(query.recentProgress) > 0, what="the end of the batch")
        query.stop()
    assert query.awaitTermination(60)
    eventually(lambda: kafka.group_state(group) in ("Empty", "Dead"))
    assert caught_up(kafka, name, group)
    sink.values.clear()
    start(sink, name, group, checkpoint="new", availableNow=True).awaitTermination(60)
    assert sink.values == []


@pytest.mark.core
def test_nothing_is_committed_of_a_batch_that_fails_and_all_when_a_restart_has_repeated_it(
    kafka: EmbeddedKafka, name: str, group: str, start: Start
) -> None:
    sink = Sink()
    start(Sink(), name, f"{group}-other", checkpoint="other")
    sink.failing = True
    query = start(sink, name, group)
    eventually(lambda: not query.isActive)
    eventually(lambda: caught_up(kafka, name, f"{group}-other"), deadline=SOON_S)
    eventually(lambda: kafka.group_state(group) in ("Empty", "Dead"))
    assert set(kafka.committed(group, name).values()) == {0}
    sink.failing = False
    start(sink, name, group)
    eventually(lambda: len(sink.values) == 12)
    eventually(lambda: caught_up(kafka, name, group), deadline=2 * SOON_S)


@pytest.mark.core
def test_batch_interval_paces_batches_and_each_is_committed_at_once_even_if_no_completion_is_reported(
    spark: SparkSession, kafka: EmbeddedKafka, name: str, group: str, tmp_path: Path
) -> None:
    options = query_process.source_options(kafka, name, group, minBatchInterval="5 seconds")
    sink = Sink()
    frame = spark.readStream.format("kafka-group").options(**options).load()
    query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "paced")).start()
    try:
        eventually(lambda: len(sink.values) == 12)
        cut_off_readers()
        for batches in (2, 3):
            fill(kafka, name)
            eventually(lambda count=batches: len(sink.values) == 12 * count)  # type: ignore[misc]
            eventually(lambda: caught_up(kafka, name, group), deadline=4)
        progress = [each for each in query.recentProgress if each.numInputRows]
        began = [datetime.fromisoformat(each.timestamp.rstrip("Z")) for each in progress]
        assert all((later - earlier).total_seconds() > 4.5 for earlier, later in itertools.pairwise(began)), began
    finally:
        query.stop()


def test_queries_of_several_groups_and_a_query_of_two_sources_each_commit_their_own_batches(
    kafka: EmbeddedKafka, name: str, unique: Callable[[str], str], start: Start
) -> None:
    groups = [unique("group") for _ in range(4)]
    sinks = [Sink() for _ in range(4)]
    for number, chosen in enumerate((groups[:1], groups[:1], groups[1:2], groups[2:])):
        start(sinks[number], name, *chosen, checkpoint=f"checkpoint-{number}", processingTime="2 seconds")
    eventually(lambda: all(caught_up(kafka, name, group) for group in groups))
    fill(kafka, name)
    eventually(lambda: all(caught_up(kafka, name, group) for group in groups))
    eventually(lambda: len(sinks[0].values) + len(sinks[1].values) == 24)
    assert len(sinks[2].values) == 24
    assert len(sinks[3].values) == 48


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_queries_that_are_restarted_leave_nothing_behind(
    spark: SparkSession, kafka: EmbeddedKafka, name: str, group: str, tmp_path: Path
) -> None:
    def left() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    # Not into foreachBatch: it leaves a thread of py4j behind for each query.
    frame = spark.readStream.format("kafka-group").options(**query_process.source_options(kafka, name, group)).load()
    before = (0, 0)
    for number in range(5):
        fill(kafka, name, 1)
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "restarted"))
        assert writer.trigger(availableNow=True).start().awaitTermination(60)
        eventually(lambda: not notifications._servers[-1]._readers)
        if number == 1:
            before = left()
    assert caught_up(kafka, name, group)
    threads, files = left()
    assert (threads, files) <= (before[0] + 1, before[1] + 2), before
