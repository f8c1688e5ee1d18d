"""Filters in batch queries: the same rows with fewer bytes, whatever Spark's setting is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual

from spark_group_source.options.parsing import parse_options
from spark_group_source.spark.batch import GroupBatchReader
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.tasks import Application
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.connection import Connection

SETTING = "spark.sql.python.filterPushdown.enabled"
PARTITIONS, EACH = 3, 40
PLACE = itemgetter("topic", "partition", "offset")
BEGIN_MS = 1_700_000_000_000


def time_of(number: int) -> int:
    """Milliseconds since 1970 of a record: times grow from record to record, but each fifth is much earlier."""
    return BEGIN_MS + 1000 * number - (15_000 if number % 5 == 0 else 0)


@pytest.fixture(scope="module")
def topics(kafka: EmbeddedKafka) -> str:
    """Two topics with ``EACH`` records in each partition, each in a record batch of its own."""
    names = [kafka.create_topic(name, PARTITIONS) for name in ("filtered-a", "filtered-b")]
    for name in names:
        for partition in range(PARTITIONS):
            rows = [{"value": str(number).encode(), "timestamp": time_of(number)} for number in range(EACH)]
            kafka.produce(name, rows, partition=partition, batch_size=0)
    return ",".join(names)


@pytest.fixture(params=["true", "false"])
def setting(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Spark's setting, in both values."""
    before = spark.conf.get(SETTING)
    assert before is not None
    spark.conf.set(SETTING, request.param)
    yield request.param
    spark.conf.set(SETTING, before)


def loaded(spark: SparkSession, kafka: EmbeddedKafka, topics: str, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topics, "minRecordsPerTask": "1"}
    return spark.read.format("kafka-group").options(**given, **options).load()


CONDITIONS = [
    ("partition = 1", 2 * EACH),
    ("PARTITION = '1' AND topic = 'filtered-a'", EACH),
    ("partition <=> 2 AND topic LIKE 'filtered-%'", 2 * EACH),
    ("partition IN (0, 2, NULL) AND offset BETWEEN 10 AND 19", 4 * 10),
    ("partition NOT IN (0, 2) AND NOT offset > 4.5", 2 * 5),
    ("partition = 1 AND partition = 2", 0),
    ("partition = 1 OR offset = 3", 2 * (EACH + 2)),
    ("partition % 2 = 1", 2 * EACH),
    ("topic IS NULL", 0),
    ("timestamp >= timestamp_millis(1700000030000)", 6 * 8),
    ("timestamp > timestamp_millis(1700000015000) AND timestamp < timestamp_millis(1700000020000)", 6 * 4),
    ("timestamp = timestamp_millis(1700000012000)", 6),
    ("timestamp >= timestamp'1960-01-01' AND offset >= 38", 6 * 2),
    ("timestamp >= timestamp_ntz'2100-01-01 00:00:00'", 0),
    ("cast(value as string) = '7' AND partition <> 0", 4),
]
"""Conditions, and how many rows they leave."""


@pytest.mark.core
def test_a_filtered_read_has_the_same_rows_with_either_setting_of_spark(
    spark: SparkSession, kafka: EmbeddedKafka, topics: str, setting: str
) -> None:
    source = loaded(spark, kafka, topics)
    everything = spark.createDataFrame(source.collect(), source.schema)
    wrong = []
    for condition, left in CONDITIONS:
        found = loaded(spark, kafka, topics, pushDownFilters="true").where(condition)
        rows, expected = (sorted(each.collect(), key=PLACE) for each in (found, everything.where(condition)))
        if rows != expected or len(rows) != left or found.schema != everything.schema:
            wrong.append(f"{condition}: {len(rows)} rows, {len(expected)} expected")
    assert not wrong, "\n".join(wrong)


def test_narrowing_follows_the_setting_of_spark(
    spark: SparkSession, kafka: EmbeddedKafka, topics: str, setting: str
) -> None:
    frame = loaded(spark, kafka, topics, pushDownFilters="true").where("partition = 1 AND offset < 5")
    assert frame.rdd.getNumPartitions() == (2 if setting == "true" else 2 * PARTITIONS)


@pytest.mark.parametrize("setting", ["true"], indirect=True)
def test_without_the_option_each_use_of_a_data_frame_has_all_of_its_rows(
    spark: SparkSession, kafka: EmbeddedKafka, topics: str, setting: str
) -> None:
    frame = loaded(spark, kafka, topics)
    part, other = frame.where("partition = 1"), frame.where("offset < 5")
    assert part.count() == 2 * EACH
    assert frame.count() == 2 * PARTITIONS * EACH
    assert part.union(other).count() == 2 * EACH + 2 * PARTITIONS * 5
    assert part.union(frame).count() == 2 * (PARTITIONS + 1) * EACH


def read_in_process(kafka: EmbeddedKafka, topic: str, *filters: Filter, **options: str) -> tuple[list[Any], int, int]:
    """The rows of a read with these filters, its number of tasks, and the bytes that brokers have sent for it."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "pushDownFilters": "true"}
    reader = GroupBatchReader(parse_options(given | options), source_schema(include_headers=False), Application(), [])
    received, receive_raw = 0, Connection.receive_raw

    def count(connection: Connection, *args: Any) -> Any:
        nonlocal received
        response = receive_raw(connection, *args)
        received += len(response.body)
        return response

    assert list(reader.pushFilters(list(filters))) == list(filters)
    with mock.patch.object(Connection, "receive_raw", count):
        tasks = reader.partitions()
        rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return rows, len(tasks), received


def test_a_filter_on_time_receives_few_bytes(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> None:
    topic, records = kafka.create_topic(unique("topic"), 2), 20_000
    for partition in range(2):
        rows = [{"value": b"x" * 100, "timestamp": BEGIN_MS + number} for number in range(records)]
        kafka.produce(topic, rows, partition=partition)
    since = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=BEGIN_MS + records - 200)
    late = GreaterThanOrEqual(("timestamp",), since)
    every, _, all_bytes = read_in_process(kafka, topic)
    few, _, few_bytes = read_in_process(kafka, topic, late)
    assert [row for row in few if row["timestamp"] >= since] == [row for row in every if row["timestamp"] >= since]
    assert len(every) == 2 * records
    assert all_bytes > 2 * records * 100
    assert few_bytes < 0.05 * all_bytes
    one, tasks, _ = read_in_process(kafka, topic, late, EqualTo(("partition",), 1), maxRecordsPerPartition="50")
    assert {row["partition"] for row in one} == {1}
    assert tasks == len(one) // 50 == 4
