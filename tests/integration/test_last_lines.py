"""The last lines of a query's log arrive on the driver's stderr, however the query ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source import register
from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import environment, kill
from tests.integration.query_process import eventually

ENDINGS = {"available-now", "failed", "stopped", "interrupted"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the driver's stderr is found in /proc")
def test_a_query_that_ends_writes_its_last_log_lines_to_the_drivers_stderr(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    name = topic()
    kafka.produce(name, ["value"])
    log = tmp_path / "stderr"

    def said(line: str) -> set[str]:
        return set(re.findall(rf"group {group}-([a-z-]+): {line}", log.read_text(errors="replace")))

    command = [sys.executable, __file__, kafka.bootstrap_servers, name, group]
    with log.open("wb") as stderr:
        running = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n", log.read_text()
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        eventually(lambda: said("the query has ended: batches") == ENDINGS, 60, "the last line of each query")
        assert said(r"member \S+ left\n") == ENDINGS, log.read_text()
    finally:
        kill(running)
        assert running.stdout is not None
        running.stdout.close()


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
    """Runs a query for each way in which one can end, in one driver; the groups end with how they ended.

    Prints ``ready`` when only the last query is left, which waits for Ctrl-C.
    """
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
