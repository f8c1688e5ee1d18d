"""Into how many tasks a batch is split, and which columns the tasks build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name

from spark_group_source.testing import EmbeddedKafka
from tests.integration.query_process import source_options

PARTITIONS, EACH = 4, 30


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    name = kafka.create_topic(unique("topic"), PARTITIONS)
    for partition in range(PARTITIONS):
        kafka.produce(name, [f"{partition}-h\u00e9-{number}" for number in range(EACH)], partition=partition)
    return name


def read(frame: DataFrame, tmp_path: Path) -> DataFrame:
    """What a query reads, with the task of each row in the column ``task``."""
    out = str(tmp_path / "out")

    def write(rows: DataFrame, number: int) -> None:
        rows.withColumn("task", F.spark_partition_id()).write.mode("append").parquet(out)

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(90)
    return frame.sparkSession.read.parquet(out)


@pytest.mark.parametrize(
    ("options", "tasks"), [({"minPartitions": "8"}, 8), ({"maxRecordsPerPartition": "10"}, 12)], ids=str
)
def test_tasks_have_the_configured_sizes_and_every_record_is_read_once(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: str,
    group: str,
    tmp_path: Path,
    options: dict[str, str],
    tasks: int,
) -> None:
    given = source_options(kafka, topic, group, **options)
    rows = read(spark.readStream.format("kafka-group").options(**given).load(), tmp_path).collect()
    assert len({row.task for row in rows}) == tasks
    places = sorted((row.partition, row.offset) for row in rows)
    assert places == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]


def test_a_users_schema_selects_columns_and_reads_values_as_text(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    given = source_options(kafka, topic, group)
    reader = spark.readStream.format("kafka-group").options(**given).schema("offset long, value string")
    rows = read(reader.load(), tmp_path).drop("task")
    expected = [(number, f"{partition}-h\u00e9-{number}") for partition in range(PARTITIONS) for number in range(EACH)]
    assert_df_equality(rows, spark.createDataFrame(expected, "offset long, value string"), ignore_row_order=True)


def test_values_that_are_not_text_fail_the_query_and_the_error_has_the_offset(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [b"\xff"], partition=2)
    reader = spark.readStream.format("kafka-group").options(**source_options(kafka, topic, group))
    with pytest.raises(StreamingQueryException, match=rf"{topic}-2 .*at offset {EACH} a value that is not UTF-8"):
        read(reader.schema("value string").load(), tmp_path)
