"""Reads what is in a topic, on a cluster, and tells who read it and with which packages; see ``test_clusters``.

The argument is a directory with ``settings.json``: the source's options. Rows go to ``rows/BATCH.parquet``. Each task
notes in ``task-ID.json`` the process of its Python daemon. While there is a file ``hold``, no task ends. In the end
``workers.json`` tells of Python workers where their packages are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register

POLL_S = 0.05
TASKS = 8


def main(place: str) -> None:
    """Ends when the query does; its error is this process' error."""
    work = Path(place)
    (work / "rows").mkdir()
    spark = SparkSession.builder.getOrCreate()
    register(spark)

    options = json.loads((work / "settings.json").read_text())

    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            task = TaskContext.get()
            assert task is not None
            note = {"daemon": os.getppid()}
            written = work / f"task-{task.taskAttemptId()}.partial"
            written.write_text(json.dumps(note))
            written.rename(written.with_suffix(".json"))
            while (work / "hold").exists():
                time.sleep(POLL_S)
            yield batch

    def write(batch: DataFrame, number: int) -> None:
        pq.write_table(batch.toArrow(), work / "rows" / f"{number}.parquet")

    records = spark.readStream.format("kafka-group").options(**options).load().select("partition", "offset", "value")
    query = (
        records.mapInArrow(hold, records.schema)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    workers = spark.sparkContext.parallelize(range(TASKS), TASKS).map(told).collect()
    (work / "workers.json").write_text(json.dumps(workers))
    spark.stop()


def told(_: int) -> dict[str, Any]:
    """What a Python worker has."""
    import crc32c
    import kafka

    import spark_group_source

    packages = [each.__file__ for each in (spark_group_source, kafka, crc32c)]
    return {"packages": packages, "python": sys.executable}


if __name__ == "__main__":
    main(sys.argv[1])
