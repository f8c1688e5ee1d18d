"""Batch queries from end to end: real Kafka, real Spark, the reader in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark import __version__ as pyspark_version
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name

from spark_group_source.testing import EmbeddedKafka

PARTITIONS, EACH = 2, 10


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with ten records each."""
    name = kafka.create_topic(unique("topic"), PARTITIONS)
    for partition in range(PARTITIONS):
        kafka.produce(name, [f"{partition}-{number}" for number in range(EACH)], partition=partition)
    return name


def batch_query(spark: SparkSession, kafka: EmbeddedKafka, topic: str, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    return spark.read.format("kafka-group").options(**given, **options).load()


def state_of(kafka: EmbeddedKafka, group: str) -> dict[str, Any]:
    """All that the brokers tell of a group: its state, members, and offsets with their metadata."""
    with kafka.admin() as admin:
        offsets = admin.list_group_offsets(group)[group]
    return {"state": kafka.group_state(group), "members": kafka.members(group), "offsets": offsets}


@pytest.mark.core
@pytest.mark.skipif(pyspark_version.startswith("4.0."), reason="PySpark 4.0 plans a batch query at each action")
def test_a_batch_read_is_fixed_at_load_and_a_new_load_sees_new_records(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str
) -> None:
    frame = batch_query(spark, kafka, topic)
    assert frame.count() == PARTITIONS * EACH
    kafka.produce(topic, ["late"], partition=0)
    assert frame.count() == frame.alias("a").join(frame.alias("b"), ["partition", "offset"]).count() == 20
    assert batch_query(spark, kafka, topic).count() == 21


@pytest.mark.core
@pytest.mark.skipif(pyspark_version.startswith("4.0."), reason="PySpark 4.0 needs register(spark)")
def test_a_session_finds_the_source_itself_in_dataframes_and_in_sql(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str
) -> None:
    plain = spark.newSession()
    assert batch_query(plain, kafka, topic).count() == PARTITIONS * EACH
    options = f"'kafka.bootstrap.servers' '{kafka.bootstrap_servers}', 'subscribe' '{topic}'"
    plain.sql(f"CREATE TEMPORARY VIEW found USING `kafka-group` OPTIONS ({options})")
    assert plain.sql("SELECT count(*) FROM found").first() == (PARTITIONS * EACH,)


@pytest.mark.core
def test_committed_starts_at_the_groups_offsets_and_leaves_them_unchanged(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    frame = batch_query(spark, kafka, topic, startingOffsets="committed", **{"kafka.group.id": group})
    assert frame.count() == PARTITIONS * EACH
    assert kafka.group_state(group) == "Dead", "a read creates no group"
    kafka.consumer_groups("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute")
    kafka.produce(topic, ["a", "b"], partition=1)
    before = state_of(kafka, group)
    options = {"startingOffsets": "committed", "kafka.group.id": group}
    found = batch_query(spark, kafka, topic, **options).select("partition", "offset", F.col("value").cast("string"))
    expected = spark.createDataFrame([(1, 10, "a"), (1, 11, "b")], "partition int, offset long, value string")
    assert_df_equality(found, expected, ignore_row_order=True)
    assert state_of(kafka, group) == before


def test_a_batch_read_is_split_into_the_configured_tasks(spark: SparkSession, kafka: EmbeddedKafka, topic: str) -> None:
    sizes: dict[tuple[str, str], int] = {("minRecordsPerTask", "1"): 2, ("maxRecordsPerPartition", "4"): 6}
    for (name, value), tasks in {**sizes, ("minPartitions", "5"): 6, ("minPartitions", "1"): 1}.items():
        frame = batch_query(spark, kafka, topic, **{name: value})
        assert frame.rdd.getNumPartitions() == tasks
        rows = frame.select("partition", "offset").collect()
        assert len(set(rows)) == len(rows) == PARTITIONS * EACH


@pytest.mark.core
def test_a_users_schema_selects_columns_and_an_empty_batch_read_has_no_rows(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str
) -> None:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    reader = spark.read.format("kafka-group").options(**given).schema("value string, partition int")
    found = reader.option("startingOffsets", f'{{"{topic}":{{"0":9,"1":10}}}}').load()
    expected = spark.createDataFrame([("0-9", 0)], "value string, partition int")
    assert_df_equality(found, expected)
    nothing = reader.option("startingOffsets", f'{{"{topic}":{{"0":10,"1":10}}}}').load()
    assert_df_equality(nothing, expected.limit(0))


def test_an_impossible_batch_read_fails_at_the_first_action(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str
) -> None:
    with pytest.raises(AnalysisException, match=r"missing: .*-1\..*Write"):
        batch_query(spark, kafka, topic, startingOffsets=f'{{"{topic}":{{"0":9}}}}').count()
    with pytest.raises(AnalysisException, match="'kafka.group.id' is missing: 'startingOffsets' is committed"):
        batch_query(spark, kafka, topic, startingOffsets="committed").count()
