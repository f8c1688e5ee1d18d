"""Reads what is in a topic, on a cluster, and tells who read it and with which packages; see ``test_clusters``.

The argument is a directory with ``settings.json``. Where the rows of a batch are goes to ``rows/BATCH-0.json`` of the
checkpoint. A task notes in ``daemon`` the process of its Python daemon; if it is to be held, it does not end before
there is a file ``release``. In the end ``workers.json`` tells of Python workers where their packages are.
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
from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register

POLL_S = 0.05
TASKS = 8


def main(place: str) -> None:
    """Ends when the query does; its error is this process' error."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    held, checkpoint = settings["held"], Path(settings["checkpoint"])
    (checkpoint / "rows").mkdir(parents=True)
    spark = SparkSession.builder.getOrCreate()
    register(spark)

    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if held:
                noted = work / f"daemon.{os.getpid()}"
                noted.write_text(str(os.getppid()))
                noted.rename(work / "daemon")
            while held and not (work / "release").exists():
                time.sleep(POLL_S)
            yield batch

    def write(batch: DataFrame, number: int) -> None:
        (checkpoint / "rows" / f"{number}-0.json").write_text(json.dumps(batch.collect()))

    records = spark.readStream.format("kafka-group").options(**settings["options"]).load().select("partition", "offset")
    writer = records.mapInArrow(hold, records.schema).writeStream.foreachBatch(write)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
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
