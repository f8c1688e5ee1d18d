"""Runs one streaming query of a group in a process of its own, so that it can be killed; see ``query_process``.

The argument is a directory with ``settings.json``. Each attempt at a batch is written to ``rows/BATCH-ATTEMPT.parquet``
before the batch may end; while there is a file ``hold``, no batch ends. The end of stdin stops the query.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register

POLL_S = 0.02


def main(place: str) -> None:
    """Ends when the query does; its error is this process' error."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    register(spark)

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
        attempt = len(list((work / "rows").glob(f"{number}-*.parquet")))
        written = work / "rows" / f"{number}-{attempt}.partial"
        pq.write_table(rows, written)
        written.rename(written.with_suffix(".parquet"))
        while (work / "hold").exists():
            time.sleep(POLL_S)

    if settings["beside"]:
        other = {**settings["options"], "kafka.group.id": settings["beside"]}
        spark.readStream.format("kafka-group").options(**other).load().writeStream.format("noop").start()
    source = spark.readStream.format("kafka-group").options(**settings["options"]).load()
    stream = source.writeStream.foreachBatch(write).option("checkpointLocation", str(work / "checkpoint"))
    if settings["available_now"]:
        stream = stream.trigger(availableNow=True)
    query = stream.start()

    def stop_when_told() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_when_told, daemon=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
