"""Runs queries of a job in one application, and holds them at the steps of their writes.

Arguments: a directory, the job's module, and ``exact``, or ``plain`` for an append without any care. Each line of stdin
is a JSON list, answered by a line with JSON: ``["start", argument, ...]``, ``["stop", name]``, or ``["count", table]``
for the rows and the different records of a table. The last part of its checkpoint names a query, up to a ``+``.

While the file ``hold-NAME-STEP`` in the directory has the number of a batch, the query waits at that step of this batch
and of later ones, and the file ``at-NAME-STEP`` exists. A task that finds the file ``kill-NAME`` kills its process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_group_source import register
from spark_group_source.exactly_once import MergeSink, batches, postgres

WORK = Path(sys.argv[1])
POLL_S = 0.02
RECORD = "named_struct('topic', topic, 'partition', partition, 'offset', offset)"
running = threading.local()


def hold(step: str, name: str, number: int) -> None:
    """Waits while the query is to be held at this step."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # the file ends the wait, or is being written
        while number >= int((WORK / f"hold-{name}-{step}").read_text()):
            (WORK / f"at-{name}-{step}").touch()
            time.sleep(POLL_S)


def here(step: str) -> None:
    """A step of the batch that this thread writes."""
    hold(step, running.name, running.number)


def in_tasks(batch: DataFrame) -> DataFrame:
    """The batch, whose tasks wait or die when they have returned half of their first rows."""
    name, number = running.name, running.number
    kill = WORK / f"kill-{name}"

    def halved(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield part.slice(0, part.num_rows // 2)
            with contextlib.suppress(FileNotFoundError):
                kill.unlink()  # one task does
                os.kill(os.getpid(), signal.SIGKILL)
            hold("task", name, number)
            yield part.slice(part.num_rows // 2)

    wanted = [WORK / f"hold-{name}-task", kill]
    return batch.mapInArrow(halved, batch.schema) if any(each.exists() for each in wanted) else batch


def between(place: Any, function: str, before: str = "", after: str = "") -> None:
    """Adds steps before and after a function of a module or class."""
    original = getattr(place, function)

    def stepped(*arguments: Any) -> Any:
        here(before)
        result = original(*arguments)
        here(after)
        return result

    setattr(place, function, stepped)


def append_plainly(sink: Any, batch: DataFrame, _: object) -> None:
    """Appends to the table of the sink without any care."""
    if isinstance(sink, postgres.PostgresSink):
        conninfo, columns = sink._conninfo, postgres._columns(batch.columns)
        copy = postgres.COPY.format(sink._table, columns=columns)
        postgres._with_zones(batch).foreachPartition(lambda rows: postgres.copy_rows(rows, conninfo, copy))
    else:
        batch.writeTo(sink._table).append()


def prepare(plain: bool) -> None:
    """Adds the steps to the sinks."""
    of_batch = batches.batch_ranges

    def ranges(spark: SparkSession, checkpoint: str, number: int) -> object:
        running.name, running.number = Path(checkpoint).name.partition("+")[0], number
        here("begun")
        return of_batch(spark, checkpoint, number)

    def stepped(write: Callable[..., None]) -> Callable[..., None]:
        def through(sink: object, batch: DataFrame, reads: object) -> None:
            write(sink, in_tasks(batch), reads)
            here("written")
            with (WORK / f"wrote-{running.name}").open("a") as file:
                file.write(f"{running.number}\n")

        return through

    patched: Any = batches
    patched.batch_ranges = ranges
    sinks: list[Any] = [MergeSink, postgres.PostgresSink]
    for sink in sinks:
        sink.write = stepped(append_plainly if plain else sink.write)
    postgres.PAUSE_LIMIT = "10min"  # that a test may last as long as it needs
    between(postgres.PostgresSink, "_take", "staged", "taken")
    between(postgres, "lacking", "locked")


def started(start: Callable[[], Any]) -> Any:
    """A query that has begun to read.

    Many that start at the same moment can exceed Spark's ten seconds for the start of a process. They wait for each
    other, and whoever exceeds them starts again, as a supervisor would have it.
    """
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(POLL_S)
        if "failed to connect back" not in str(query.exception() or ""):
            return query


def main(module: str, way: str) -> None:
    job: Any = importlib.import_module(module)
    prepare(way == "plain")
    job.run = lambda args, start, conf=None: (args, start, conf or {})
    # Queries of one group have one name, which Spark allows only once in an application.
    setattr(DataStreamWriter, "queryName", lambda stream, _: stream)  # noqa: B010
    queries: dict[str, Any] = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what else is printed
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer: object = None
        if command == "start":
            args, start, conf = job.main(arguments)
            spark = SparkSession.builder.config(map=conf).getOrCreate()
            register(spark)
            query = started(lambda: start(spark, args)[0])  # noqa: B023 -- it starts in the loop
            queries[Path(args.checkpoint).name.partition("+")[0]] = query
        elif command == "stop":
            query = queries.pop(arguments[0])
            answer = str(query.exception() or "")
            query.stop()
        else:
            if module == "group_to_iceberg":  # its catalog keeps what this session saw of the table for 30 s
                spark.sql(f"REFRESH TABLE {arguments[0]}")
            rows = spark.sql(f"SELECT count(*), count(DISTINCT {RECORD}) FROM {arguments[0]}").collect()
            answer = list(rows[0])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[2:])
