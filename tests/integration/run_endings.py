"""Runs a query for each way in which one can end, in one driver; see ``test_last_lines``. The last waits for Ctrl-C."""

from __future__ import annotations

import contextlib
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source import register


def refuse(batch: DataFrame, number: int) -> None:
    """A sink that cannot write."""
    raise OSError("the disk is full")


def main(servers: str, topic: str, group: str) -> None:
    """Prints ``ready`` when only the last query is left; the others' groups end with how they ended."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)

    def start(ending: str) -> StreamingQuery:
        options = {"kafka.bootstrap.servers": servers, "kafka.group.id": f"{group}-{ending}", "subscribe": topic}
        frame = spark.readStream.format("kafka-group").options(**options, startingOffsets="earliest").load()
        if ending == "failed":
            return frame.writeStream.foreachBatch(refuse).start()
        writer = frame.writeStream.format("noop")
        return (writer.trigger(availableNow=True) if ending == "available-now" else writer).start()

    start("available-now").awaitTermination()
    with contextlib.suppress(StreamingQueryException):
        start("failed").awaitTermination()
    stopped = start("stopped")
    stopped.processAllAvailable()
    stopped.stop()
    interrupted = start("interrupted")
    interrupted.processAllAvailable()
    print("ready", flush=True)
    interrupted.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
