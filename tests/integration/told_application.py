"""An application that is told to stop while its query is in a given state; see ``test_told_to_stop``.

The argument is a directory with ``settings.json``. A file ``ready`` appears in it once Spark has started the query. A
line on stdin stops Spark, as a cell of a notebook does, and the process lives on.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register

TASK = "a task"
FUNCTION = "foreachBatch"
"""What holds the first batch for ever, if anything does."""


def sleep_in_task(row: object) -> None:
    """Holds a task."""
    time.sleep(3600)


def handle_signals(query: object) -> None:
    """The handler of docs/howto.md."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    while query.isActive and not stopping.wait(1.0):  # type: ignore[attr-defined]
        pass
    query.stop()  # type: ignore[attr-defined]
    query.awaitTermination()  # type: ignore[attr-defined]


def main(place: str) -> None:
    """Ends as its signals make it end."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m")
    spark = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    if settings["register"]:
        register(spark)

    def hold(batch: DataFrame, number: int) -> None:
        batch.count()
        (work / "held").touch()
        if settings["held"] == TASK:
            batch.foreach(sleep_in_task)
        elif settings["held"] == FUNCTION:
            time.sleep(3600)

    source = spark.readStream.format("kafka-group").options(**settings["options"]).load()
    query = source.writeStream.foreachBatch(hold).option("checkpointLocation", str(work / "checkpoint")).start()
    (work / "ready").touch()
    if settings["handler"]:
        handle_signals(query)
    elif settings["kernel"]:
        sys.stdin.readline()
        spark.stop()
        sys.stdin.read()
    else:
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
