"""One run: a streaming query with Trigger.AvailableNow and a fresh checkpoint over a whole topic."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmark.cases import GROUP, Case, Sink
from benchmark.errors import BenchError

QUERY_TIMEOUT_S = 180
TYPES = {"value": "binary", "offset": "long"}
KEY_AT = len('{"id":"') + 1
"""Where the first byte of the id stands in a value: what the aggregation groups by, 16 groups."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run took.

    ``batch_seconds`` sums addBatch of the batches that had rows: their tasks planned, read and written to the sink,
    without what only a start costs (for ``kafka-group`` a Python process and joining the group).
    ``wall_seconds`` is all of it, from start() to the query's end. ``trigger_ms`` holds triggerExecution of each batch
    that had rows, ``phases_ms`` the sums of all that the progress tells, by Spark's names.
    """

    rows: int
    batch_seconds: float
    wall_seconds: float
    trigger_ms: list[int]
    phases_ms: dict[str, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """How one source reads one topic for one case."""

    spark: SparkSession
    servers: str
    source: str
    topic: str
    case: Case

    def frame(self) -> DataFrame:
        """The stream. Columns are projected at the source where it can, as each source's users would do it."""
        options = {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic, "startingOffsets": "earliest"}
        options["includeHeaders"] = str(self.case.topic.headers).lower()
        if self.case.batch:
            options["maxOffsetsPerTrigger"] = str(self.case.batch)
        if self.source == GROUP:
            options["kafka.group.id"] = f"bench-{uuid.uuid4().hex}"
        reader = self.spark.readStream.format(self.source).options(**options)
        columns = self.case.columns
        if columns and self.source == GROUP:
            return reader.schema(", ".join(f"{name} {TYPES[name]}" for name in columns)).load()
        return reader.load().select(*columns) if columns else reader.load()


def run(reading: Reading) -> Run:
    """Runs the case's query once.

    Raises:
        BenchError: it did not end in time, or did not read every record once.
    """
    with tempfile.TemporaryDirectory(prefix="bench-query-") as place:
        writer = _to_sink(reading.frame(), reading.case.sink, place)
        seconds, query = _follow(writer, place)
        measured = _figures(query, seconds)
    if measured.rows != reading.case.topic.records:
        raise BenchError(
            f"{reading.source} read {measured.rows:,} rows of {reading.case.topic.records:,} ({reading.case.name})."
        )
    return measured


def contents(reading: Reading) -> tuple[int, Decimal]:
    """Number of rows, and a sum over the hashes of all columns that does not depend on the order of rows."""
    found: list[tuple[int, Decimal]] = []

    def add(batch: DataFrame, number: int) -> None:
        hashes = F.xxhash64(*batch.columns).cast("decimal(20,0)")
        found.extend(tuple(row) for row in batch.agg(F.count("*"), F.sum(hashes)).collect())

    with tempfile.TemporaryDirectory(prefix="bench-contents-") as place:
        _follow(reading.frame().writeStream.foreachBatch(add), place)
    return sum(rows for rows, _ in found), sum((hashes for _, hashes in found if hashes is not None), Decimal(0))


def _to_sink(frame: DataFrame, sink: Sink, place: str) -> DataStreamWriter:
    if sink is Sink.PARQUET:
        return frame.writeStream.format("parquet").option("path", str(Path(place, "output")))
    if sink is Sink.AGGREGATION:
        groups = frame.groupBy(F.substring("value", KEY_AT, 1).alias("first"))
        counted = groups.agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes"))
        return counted.writeStream.format("noop").outputMode("complete")
    return frame.writeStream.format("noop")


def _follow(writer: DataStreamWriter, place: str) -> tuple[float, StreamingQuery]:
    """Starts the query and waits for its end; returns the seconds that took."""
    began = time.monotonic()
    query = writer.option("checkpointLocation", str(Path(place, "checkpoint"))).trigger(availableNow=True).start()
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        query.stop()
        raise BenchError(f"A query did not end within {QUERY_TIMEOUT_S} s; its last progress: {query.lastProgress}")
    return time.monotonic() - began, query


def _figures(query: StreamingQuery, seconds: float) -> Run:
    batches: list[Any] = [each for each in query.recentProgress if each.numInputRows]
    phases: Counter[str] = Counter()
    for each in batches:
        phases.update(each.durationMs)
    return Run(
        rows=sum(each.numInputRows for each in batches),
        batch_seconds=phases["addBatch"] / 1000,
        wall_seconds=seconds,
        trigger_ms=[each.durationMs["triggerExecution"] for each in batches],
        phases_ms=dict(phases),
    )
