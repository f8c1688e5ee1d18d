"""One run: a streaming query with a new checkpoint, and the batches in its progress."""

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
from benchmark.source_query import SourceQuery
from spark_group_source.clock import Deadline
from spark_group_source.lag.source_progress import epoch_seconds

QUERY_TIMEOUT_S = 180.0
CHECK_TIMEOUT_S = 900.0
"""The JVM source checks thousands of partitions for minutes: each of its tasks asks for the metadata of all of them."""
POLL_S = 0.1
GROUP_POSITION = len('{"id":"') + 1
"""Position of the first byte of the id in a value. The aggregation groups by it, which gives 16 groups."""
NO_WAIT = {"kafka.fetch.max.wait.ms": "5"}
"""Avoids the delay of the JVM source at the end offsets in the check, which has no figures."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with rows. ``phases_ms`` has its durations by Spark's names, among them:

    ``addBatch``: Spark plans the tasks, which read and write the rows. The costs of a start are not included (for
    ``kafka-group``: a Python process, the join of the group). ``triggerExecution``: the whole batch.
    """

    rows: int
    phases_ms: dict[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """The batches of a run, and the seconds from start() to the end of the last one, or the latency.

    ``received`` is the number of bytes that the broker sent for micro-batches. A further batch may have begun.
    ``cpu_s`` is the CPU time of Spark's JVM and Python workers, ``first_s`` the seconds to the end of the first batch.
    """

    batches: list[Batch]
    seconds: float
    first_s: float = 0.0
    latency_ms: float | None = None
    received: int | None = None
    cpu_s: float | None = None

    @property
    def rows(self) -> int:
        """The rows of all batches."""
        return sum(batch.rows for batch in self.batches)


def run(source_query: SourceQuery) -> Run:
    """Runs the case's query once.

    Raises:
        BenchError: the query did not end in time, or did not read the expected rows.
    """
    case = source_query.case
    if case.extent is Extent.LATENCY:
        return Run([], 0.0, latency_ms=median_latency_ms(source_query))
    with tempfile.TemporaryDirectory(prefix="bench-query-") as directory:
        writer = _to_sink(source_query.frame(source_query.limit), case.sink, directory)
        checkpoint = Path(directory, "checkpoint")
        writer = writer.option("checkpointLocation", str(checkpoint))
        began = time.time()
        if case.extent is Extent.WHOLE:
            query = _run_to_end(writer, QUERY_TIMEOUT_S)
        elif case.extent is Extent.INSIDE:
            # Spark starts the first batch at once, and no second one.
            query = _run_batches(1, writer.trigger(processingTime="1 hour"), checkpoint)
        else:
            query = _run_batches(MICRO_BATCHES, writer, checkpoint)
    measured = _measured(query, began)
    _check(source_query, measured)
    return measured


def contents(source_query: SourceQuery) -> tuple[int, Decimal]:
    """The number of rows of the topic, and the sum of their hashes, which does not depend on their order."""
    sums: list[tuple[int, Decimal]] = []

    def add(batch: DataFrame, number: int) -> None:
        hashes = F.xxhash64(*batch.columns).cast("decimal(20,0)")
        rows, total = batch.agg(F.count("*"), F.sum(hashes)).collect()[0]
        sums.append((rows, total or Decimal(0)))

    with tempfile.TemporaryDirectory(prefix="bench-contents-") as directory:
        options: dict[str, str] = {}
        if source_query.source == JVM:
            options = NO_WAIT
        frame = source_query.frame(None, **options)
        _run_to_end(frame.writeStream.foreachBatch(add).option("checkpointLocation", directory), CHECK_TIMEOUT_S)
    return sum(rows for rows, _ in sums), sum((total for _, total in sums), Decimal(0))


def _to_sink(frame: DataFrame, sink: Sink, directory: str) -> DataStreamWriter:
    if sink is Sink.PARQUET:
        return frame.writeStream.format("parquet").option("path", str(Path(directory, "output")))
    if sink is Sink.AGGREGATION:
        groups = frame.groupBy(F.substring("value", GROUP_POSITION, 1).alias("first"))
        counted = groups.agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes"))
        return counted.writeStream.format("noop").outputMode("complete")
    return frame.writeStream.format("noop")


def _run_to_end(writer: DataStreamWriter, timeout_s: float) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(int(timeout_s)):
        _stop_and_raise(query, timeout_s)
    return query


def _run_batches(batches: int, writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    query = writer.start()
    deadline = Deadline.after(QUERY_TIMEOUT_S)
    last = checkpoint / "commits" / str(batches - 1)
    # The progress has the offsets of all partitions: of thousands it takes as much CPU time as a source.
    while not last.exists() or _last_batch_id(query) < batches - 1:
        if query.awaitTermination(POLL_S) or deadline.expired():  # type: ignore[arg-type] # takes fractions, too
            _stop_and_raise(query, QUERY_TIMEOUT_S)
    query.stop()
    return query


def _last_batch_id(query: StreamingQuery) -> int:
    """The last batch in the query's progress; -1 before the first."""
    if not query.lastProgress:
        return -1
    return query.lastProgress.batchId


def _stop_and_raise(query: StreamingQuery, timeout_s: float) -> None:
    last_progress = query.lastProgress
    query.stop()
    raise BenchError(f"A query did not end within {timeout_s:.0f} s. Its last progress: {last_progress}")


def _measured(query: StreamingQuery, began: float) -> Run:
    progress: list[Any] = [each for each in query.recentProgress if each.numInputRows]
    batches = [Batch(each.numInputRows, dict(each.durationMs)) for each in progress]
    if not batches:
        raise BenchError(f"A query read nothing: {query.lastProgress}")

    def ended(number: int) -> float:
        return epoch_seconds(progress[number].timestamp) + batches[number].phases_ms["triggerExecution"] / 1000

    return Run(batches, ended(-1) - began, ended(0) - began)


def _check(source_query: SourceQuery, measured: Run) -> None:
    """Checks the number of rows. Limits are rounded down, so a batch may lack one record of each partition."""
    case = source_query.case
    if case.topic.gaps:
        return
    expected = source_query.limit or case.topic.records
    for batch in measured.batches:
        if not expected - case.topic.partitions <= batch.rows <= expected:
            raise BenchError(
                f"{source_query.source} read {batch.rows:,} rows in a batch of {expected:,} ({case.name})."
            )
