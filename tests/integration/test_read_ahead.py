"""A backlog that is read in limited micro-batches: each record once, and each byte about once."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name

from spark_group_source.clock import Deadline
from spark_group_source.fetch.read_ahead import LOCAL_DIRECTORIES
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from tests.integration.conftest import Stream
from tests.integration.standing import wire

PARTITIONS, EACH, SIZE, LIMIT = 20, 100, 1000, 10


@pytest.fixture(scope="module", params=[16_384, 200_000], ids=["16 kB", "200 kB"])
def topic(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> str:
    """A topic with ``EACH`` records in each partition, in record batches of about this size."""
    name = kafka.create_topic(f"backlog-{request.param}", PARTITIONS)
    for partition in range(PARTITIONS):
        rows = [f"{partition}-{number}-".ljust(SIZE, "x") for number in range(EACH)]
        kafka.produce(name, rows, partition=partition, batch_size=request.param, linger_ms=500)
    return name


def test_a_backlog_is_received_about_once(
    kafka: EmbeddedKafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCAL_DIRECTORIES, str(tmp_path))
    settings = wire(kafka)
    cluster = Cluster(settings)
    metadata = cluster.topics({topic}, Deadline.after(30))[topic]
    cluster.close()
    received, receive_raw = 0, Connection.receive_raw

    def count(connection: Connection, deadline: Deadline) -> Any:
        nonlocal received
        response = receive_raw(connection, deadline)
        received += len(response.body)
        return response

    rows = []
    with mock.patch.object(Connection, "receive_raw", count):
        for start in range(0, EACH, LIMIT):
            ranges = tuple(
                OffsetRange(topic, number, start, start + LIMIT, metadata.id, metadata.epochs[number])
                for number in range(PARTITIONS)
            )
            task = FetchTask(ranges, settings, arrow_schema(["partition", "offset"]), query_id="q")
            rows += [tuple(row.values()) for batch in read(task) for row in batch.to_pylist()]
    assert sorted(rows) == [(number, offset) for number in range(PARTITIONS) for offset in range(EACH)]
    assert received < 1.5 * PARTITIONS * EACH * SIZE


@pytest.mark.parametrize("topic", [200_000], ids=["200 kB"], indirect=True)
def test_every_worker_of_a_query_uses_the_kept_records(
    spark: SparkSession, topic: str, stream: Stream, tmp_path: Path
) -> None:
    """The tasks of a batch run in several workers, and Spark gives each worker the ranges of another one."""
    local_directories = F.udf(lambda _: os.environ[LOCAL_DIRECTORIES])
    (row,) = spark.range(1).select(local_directories("id")).collect()
    local = Path(row[0].split(",")[0])
    kept: set[str] = set()
    batches: list[int] = []

    def write(rows: DataFrame, number: int) -> None:
        rows.select("partition", "offset", "value").write.mode("append").parquet(str(tmp_path / "out"))
        batches.append(number)
        kept.update(each.name for each in local.glob("kafka-group-*/*") if re.fullmatch(r".{36}-\d+", each.name))

    frame = stream(topic, maxOffsetsPerTrigger=str(PARTITIONS * LIMIT), minRecordsPerTask="50")
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert len(batches) >= EACH // LIMIT
    assert kept
    expected = spark.createDataFrame(
        [
            (partition, number, f"{partition}-{number}-".ljust(SIZE, "x"))
            for partition in range(PARTITIONS)
            for number in range(EACH)
        ],
        "partition int, offset long, value string",
    )
    found = spark.read.parquet(str(tmp_path / "out")).selectExpr("partition", "offset", "cast(value as string) value")
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
