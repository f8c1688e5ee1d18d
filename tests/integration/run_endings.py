"""Runs a query for each way in which one can end, in one driver; see ``test_last_lines``. The last waits for Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source import register
from tests.integration.query_process import eventually


def refuse(batch: DataFrame, number: int) -> None:
    """A sink that cannot write."""
    raise OSError("the disk is full")


def say_ready() -> None:
    """Prints ``ready`` when the main thread waits for the JVM's answer to ``awaitTermination()``.

    A Ctrl-C in the moment before is lost in py4j, with any source: the call of its handler and the main thread's are
    answered on one socket, and the main thread waits for ever.
    """
    main = threading.main_thread().ident
    assert main is not None

    def waits() -> bool:
        calls = [call.name for call in traceback.extract_stack(sys._current_frames()[main])]
        return "awaitTermination" in calls and calls[-1] == "readinto"

    eventually(waits, what="the wait for the end of the query")
    print("ready", flush=True)


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
    threading.Thread(target=say_ready, daemon=True).start()
    interrupted.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
