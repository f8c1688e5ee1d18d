"""One run: a streaming query with a fresh checkpoint, and what its progress says of the batches."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmark.cases import JVM, MICRO_BATCHES, Extent, Sink
from benchmark.errors import BenchError
from benchmark.latency import median_latency_ms
from benchmark.reading import Reading
from spark_group_source.clock import Deadline
from spark_group_source.lag.progress import epoch_seconds

QUERY_TIMEOUT_S = 180.0
POLL_S = 0.1
KEY_AT = len('{"id":"') + 1
"""Where the first byte of the id stands in a value: what the aggregation groups by, 16 groups."""
NO_WAIT = {"kafka.fetch.max.wait.ms": "5"}
"""For the JVM source at the end of the log, where nothing is timed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that had rows. ``phases_ms`` are its durations by Spark's names, among them:

    ``addBatch``: tasks are planned, and read and write the rows. What only a start costs is not in it (for
    ``kafka-group``: a Python process, joining the group). ``triggerExecution``: all of the batch.
    """

    rows: int
    phases_ms: dict[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """Batches of a run, and the seconds from start() to the end of the last of them; or how long rows took to come."""

    batches: list[Batch]
    seconds: float
    latency_ms: float | None = None


def run(reading: Reading) -> Run:
    """Runs the case's query once.

    Raises:
        BenchError: it did not come to its end in time, or read other rows than it should.
    """
    case = reading.case
    if case.extent is Extent.LATENCY:
        return Run([], 0.0, median_latency_ms(reading))
    with tempfile.TemporaryDirectory(prefix="bench-query-") as place:
        writer = _to_sink(reading.frame(case.limit), case.sink, place)
        writer = writer.option("checkpointLocation", str(Path(place, "checkpoint")))
        began = time.time()
        if case.extent is Extent.WHOLE:
            query = _to_the_end(writer)
        elif case.extent is Extent.INSIDE:
            # The first batch comes at once, the next one never.
            query = _stopped_after(1, writer.trigger(processingTime="1 hour"))
        else:
            query = _stopped_after(MICRO_BATCHES, writer)
    measured = _measured(query, began)
    _check(reading, measured)
    return measured


def contents(reading: Reading) -> tuple[int, Decimal]:
    """Number of rows of the topic, and a sum over the hashes of all columns that does not depend on their order."""
    found: list[tuple[int, Decimal]] = []

    def add(batch: DataFrame, number: int) -> None:
        hashes = F.xxhash64(*batch.columns).cast("decimal(20,0)")
        rows, total = batch.agg(F.count("*"), F.sum(hashes)).collect()[0]
        found.append((rows, total or Decimal(0)))

    with tempfile.TemporaryDirectory(prefix="bench-contents-") as place:
        frame = reading.frame(None, **(NO_WAIT if reading.source == JVM else {}))
        _to_the_end(frame.writeStream.foreachBatch(add).option("checkpointLocation", place))
    return sum(rows for rows, _ in found), sum((total for _, total in found), Decimal(0))


def _to_sink(frame: DataFrame, sink: Sink, place: str) -> DataStreamWriter:
    if sink is Sink.PARQUET:
        return frame.writeStream.format("parquet").option("path", str(Path(place, "output")))
    if sink is Sink.AGGREGATION:
        groups = frame.groupBy(F.substring("value", KEY_AT, 1).alias("first"))
        counted = groups.agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes"))
        return counted.writeStream.format("noop").outputMode("complete")
    return frame.writeStream.format("noop")


def _to_the_end(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(int(QUERY_TIMEOUT_S)):
        _give_up(query)
    return query


def _stopped_after(batches: int, writer: DataStreamWriter) -> StreamingQuery:
    query = writer.start()
    deadline = Deadline.after(QUERY_TIMEOUT_S)
    while not (query.lastProgress and query.lastProgress.batchId >= batches - 1):
        if query.awaitTermination(POLL_S) or deadline.expired():  # type: ignore[arg-type] # takes fractions, too
            _give_up(query)
    query.stop()
    return query


def _give_up(query: StreamingQuery) -> None:
    seen = query.lastProgress
    query.stop()
    raise BenchError(f"A query did not come to its end within {QUERY_TIMEOUT_S:.0f} s. Its last progress: {seen}")


def _measured(query: StreamingQuery, began: float) -> Run:
    told: list[Any] = [each for each in query.recentProgress if each.numInputRows]
    batches = [Batch(each.numInputRows, dict(each.durationMs)) for each in told]
    if not batches:
        raise BenchError(f"A query read nothing: {query.lastProgress}")
    return Run(batches, epoch_seconds(told[-1].timestamp) + batches[-1].phases_ms["triggerExecution"] / 1000 - began)


def _check(reading: Reading, measured: Run) -> None:
    """The shares of a limit are rounded down, which may leave out a record of each partition."""
    case = reading.case
    if case.topic.gaps:
        return
    wanted = case.limit or case.topic.records
    for batch in measured.batches:
        if not wanted - case.topic.partitions <= batch.rows <= wanted:
            raise BenchError(f"{reading.source} read {batch.rows:,} rows in a batch of {wanted:,} ({case.name}).")
