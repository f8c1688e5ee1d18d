"""Triggers, and several reads in one query or one driver: what Spark makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE = 120
eventually = partial(query_process.eventually, deadline=DEADLINE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with five records each."""
    name = kafka.create_topic(unique("topic"), partitions=2)
    for number in range(2):
        kafka.produce(name, [f"v{number}-{record}" for record in range(5)], partition=number)
    return name


class Reads:
    """Rows of a query's batches, in order."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    @property
    def rows(self) -> list[str]:
        return [row for batch in self.batches for row in batch]

    def start(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.selectExpr("cast(value as string)").writeStream.option("checkpointLocation", str(checkpoint))
        return writer.foreachBatch(self._keep).trigger(**trigger).start()

    def run(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> Reads:
        """Runs a query that ends by itself."""
        assert self.start(frame, checkpoint, **trigger).awaitTermination(DEADLINE), "the query did not end"
        return self

    def _keep(self, batch: DataFrame, number: int) -> None:
        if rows := [row[0] for row in batch.collect()]:
            self.batches.append(rows)


def stream(spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, **options: str) -> DataFrame:
    given = query_process.source_options(kafka, topic, group) | options
    if "assign" in options:
        given = {key: value for key, value in given.items() if key not in ("subscribe", *OF_MEMBERS)}
    return spark.readStream.format("kafka-group").options(**given).load()


OF_MEMBERS = ("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms")


def values(*partitions: int) -> list[str]:
    return [f"v{number}-{record}" for number in partitions for record in range(5)]


def caught_up(kafka: EmbeddedKafka, topic: str, group: str) -> bool:
    return kafka.committed(group, topic) == {(topic, number): end for number, end in kafka.end_offsets(topic).items()}


def test_once_reads_and_commits_everything_in_one_batch_whatever_the_limit(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    frame = stream(spark, kafka, topic, group, maxOffsetsPerTrigger="2")
    assert [len(each) for each in Reads().run(frame, tmp_path, once=True).batches] == [10]
    eventually(lambda: caught_up(kafka, topic, group))
    kafka.produce(topic, ["one more"])
    assert Reads().run(frame, tmp_path, once=True).rows == ["one more"]
    eventually(lambda: caught_up(kafka, topic, group))


@pytest.mark.core
def test_assigned_partitions_are_read_and_committed_by_an_available_now_run(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    frame = stream(spark, kafka, topic, group, assign=f'{{"{topic}": [1]}}')
    found = Reads().run(frame, tmp_path, availableNow=True)
    assert sorted(found.rows) == values(1)
    assert kafka.group_state(group) in ("Empty", "Dead")


def test_processing_time_reads_the_records_between_two_triggers_in_one_batch(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    found = Reads()
    query = found.start(stream(spark, kafka, topic, group), tmp_path, processingTime="1 second")
    try:
        eventually(lambda: len(found.rows) == 10)
        eventually(lambda: caught_up(kafka, topic, group))
        kafka.produce(topic, ["one more"])
        eventually(lambda: len(found.rows) == 11 and caught_up(kafka, topic, group))
    finally:
        query.stop()
    assert [len(each) for each in found.batches] == [10, 1]


@pytest.mark.trap
def test_two_reads_of_one_group_in_one_query_split_the_topic_and_their_union_has_each_record_once(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    found = Reads()
    both = stream(spark, kafka, topic, group).union(stream(spark, kafka, topic, group))
    query = found.start(both, tmp_path, processingTime="0 seconds")
    try:
        eventually(lambda: sorted(each.partitions for each in kafka.members(group)) == [1, 1])
        for number in range(2):
            kafka.produce(topic, [f"late-{number}"], partition=number)
        eventually(lambda: len(found.rows) >= 12 and caught_up(kafka, topic, group))
    finally:
        query.stop()
    assert sorted(found.rows) == sorted([*values(0, 1), "late-0", "late-1"])


def test_one_frame_used_twice_is_one_read(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    frame = stream(spark, kafka, topic, group)
    found = Reads().run(frame.union(frame), tmp_path, availableNow=True)
    assert sorted(found.rows) == sorted(values(0, 1) * 2)
    assert caught_up(kafka, topic, group)


@pytest.mark.core
def test_two_reads_of_two_groups_each_read_everything(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    groups = [unique("group"), unique("group")]
    both = [stream(spark, kafka, topic, each).selectExpr("cast(value as string) as value") for each in groups]
    joined = both[0].join(both[1], "value")
    assert sorted(Reads().run(joined, tmp_path / "join", availableNow=True).rows) == values(0, 1)
    assert all(set(kafka.committed(each, topic)) == {(topic, 0), (topic, 1)} for each in groups)


def test_spark_rejects_a_continuous_trigger(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    writer = stream(spark, kafka, topic, group).writeStream.format("noop").trigger(continuous="1 second")
    with pytest.raises(Exception, match="kafka-group does not support continuous processing"):
        writer.option("checkpointLocation", str(tmp_path)).start()


def test_spark_rejects_real_time_mode(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    writer = stream(spark, kafka, topic, group).writeStream.format("console").outputMode("update")
    trigger: dict[str, Any] = {"realTime": "5 seconds"}  # from PySpark 4.2 on
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start()
    with pytest.raises(StreamingQueryException, match="REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED"):
        query.awaitTermination(DEADLINE)
    assert not kafka.members(group)
