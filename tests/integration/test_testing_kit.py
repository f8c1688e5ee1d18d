"""What the pytest plugin gives to tests of streaming jobs, beside the example project."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.errors import StuckQuery
from spark_group_source.testing.spark import local_spark
from tests.integration.conftest import Stream
from tests.integration.query_process import eventually
from tests.integration.standing import fill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Run = Callable[..., "DataFrame"]
ALL_TYPES = [
    "key",
    "offset",
    "timestamp",
    "cast(timestamp as timestamp_ntz) as ntz",
    "date(timestamp) as day",
    "cast(offset as decimal(20, 3)) as number",
    "array(offset, null) as list",
    "map(topic, timestamp) as times",
    "struct(headers, partition) as nested",
    "headers",
    "cast(null as double) as nothing",
]


@pytest.mark.core
def test_an_available_now_run_reads_and_commits_everything_with_any_limit(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], group: str, stream: Stream, run_available_now: Run
) -> None:
    topic = kafka_topic(partitions=2)
    places = fill(kafka, topic, 5)
    rows = run_available_now(stream(topic, maxOffsetsPerTrigger="4"))
    assert sorted((row.partition, row.offset) for row in rows.collect()) == sorted(places)
    assert kafka.lag(group, topic) == {0: 0, 1: 0}


@pytest.mark.core
def test_a_run_with_an_earlier_checkpoint_continues_with_its_state(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], kafka_checkpoint: str, stream: Stream, run_available_now: Run
) -> None:
    topic = kafka_topic()
    counts = stream(topic).groupBy("key").count()
    found = []
    for _ in range(2):
        kafka.produce(topic, [("a", "1"), ("a", "2")])
        rows = run_available_now(counts, checkpoint=kafka_checkpoint, output_mode="complete")
        found.append([(bytes(row["key"]), row["count"]) for row in rows.collect()])
    assert found == [[(b"a", 2)], [(b"a", 4)]]


def test_a_written_frame_is_read_back_by_stream_and_batch_with_all_types(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], stream: Stream, run_available_now: Run
) -> None:
    topic = kafka_topic(partitions=3)
    time = datetime(2026, 1, 1, 12, 0, 0, 123_000, tzinfo=timezone.utc)
    rows = spark.createDataFrame(
        [
            (topic, "k1", "v1", [("trace", b"7"), ("trace", b"8")], 2, time),
            (topic, None, "v2", None, None, time),
            (topic, "k3", None, [], 0, time),
        ],
        "topic STRING, key STRING, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT,"
        " timestamp TIMESTAMP",
    )
    places = kafka.produce(None, rows)
    assert [places[0][0], places[2][0]] == [2, 0]  # the second goes anywhere
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    batch = spark.read.format("kafka-group").options(**given).load()
    written = {(row.key, row.value, row.timestamp.timestamp()) for row in batch.collect()}
    seconds = time.timestamp()
    assert written == {(b"k1", b"v1", seconds), (None, b"v2", seconds), (b"k3", None, seconds)}
    headers = [(each.key, bytes(each.value)) for row in batch.collect() for each in row.headers or ()]
    assert headers == [("trace", b"7"), ("trace", b"8")]
    read = run_available_now(stream(topic, includeHeaders="true").selectExpr(*ALL_TYPES))
    assert_df_equality(read.orderBy("key"), batch.selectExpr(*ALL_TYPES).orderBy("key"))


def test_a_run_without_rows_has_the_schema_and_one_that_fails_raises_the_error_of_its_query(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], stream: Stream, run_available_now: Run
) -> None:
    topic = kafka_topic()
    frame = stream(topic)
    rows = run_available_now(frame)
    assert rows.schema == frame.schema
    assert rows.count() == 0
    kafka.produce(topic, ["x"])
    with pytest.raises(StreamingQueryException, match="no such luck"):
        run_available_now(frame.selectExpr("raise_error('no such luck')"))


def test_a_query_that_does_not_end_is_stopped_and_the_error_names_its_member(
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    group: str,
    stream: Stream,
    await_query_end: Callable[..., None],
) -> None:
    query = stream(kafka_topic(), **{"kafka.client.id": "forgotten"}).writeStream.format("noop").start()
    try:
        eventually(lambda: [each.partitions for each in kafka.members(group)] == [1])
        with pytest.raises(
            StuckQuery, match=rf"Group {group} is Stable\. Its members: forgotten with 1 partition\(s\)"
        ):
            await_query_end(query, timeout=0.1)
        assert not query.isActive
    finally:
        query.stop()


def test_an_existing_session_is_used_and_left_running(spark: SparkSession, tmp_path: Path) -> None:
    with local_spark(tmp_path) as found:
        assert found is spark
    assert spark.range(3).count() == 3
