"""``maxBytesPerTrigger`` from end to end: a run in several batches, each within both limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import __version__ as pyspark_version
from pyspark.sql import SparkSession

from spark_group_source.testing import EmbeddedKafka
from tests.integration.query_process import source_options

PARTITIONS, EACH, SIZE = 2, 1000, 1000


@pytest.mark.skipif(pyspark_version.startswith("4.1."), reason="PySpark 4.1 runs AvailableNow as one batch")
@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ({"maxBytesPerTrigger": "500kb"}, 512),
        ({"maxBytesPerTrigger": "500kb", "maxOffsetsPerTrigger": "100"}, 100),
        ({"maxBytesPerTrigger": "500kb", "maxOffsetsPerTrigger": "100000"}, 512),
    ],
    ids=str,
)
def test_batches_end_at_the_lower_of_both_limits_and_all_records_are_read(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    group: str,
    tmp_path: Path,
    limits: dict[str, str],
    rows: int,
) -> None:
    name = topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        kafka.produce(name, [f"{partition}-{number}-".ljust(SIZE, "x") for number in range(EACH)], partition=partition)
    frame = spark.readStream.format("kafka-group").options(**source_options(kafka, name, group, **limits)).load()
    writer = frame.select("partition", "offset").writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.distinct().count() == found.count() == PARTITIONS * EACH
    assert all(0.8 * rows <= each <= 1.1 * rows for each in batches[:-1]), batches
    assert len(batches) >= PARTITIONS * EACH // rows
