"""Exactly once in a table that several members of a group write; docs/exactly_once.md explains why this is enough.

reads = ranges(spark, checkpoint, number)            # in foreachBatch: what the batch holds of each partition
merge(batch, reads, "lake.db.orders", rewind="skip")  # Delta, Iceberg
first = first_offset(read, position, lineage, rewind) # a sink that keeps the positions itself
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import begin

from spark_group_source.migration.checkpoint_files import CheckpointFiles
from spark_group_source.migration.offset_log import parse_log
from spark_group_source.offsets import BatchOffset, OffsetRange

ATTEMPTS = 20
MAX_PAUSE_S = 5.0
CONFLICTS = (
    "DELTA_CONCURRENT",
    "ConcurrentAppend",
    "MetadataChanged",
    "ProtocolChanged",
    "conflicting files",
    "CommitFailed",
)


class MissingRows(Exception):
    """The batch starts above the table's position, so the records between them would be missing for ever."""


def add_rewind(parser: argparse.ArgumentParser) -> None:
    """Adds the choice what a rewind of the group means for the table."""
    about = "records that the table has, after the group was moved back: skip them (default), or write them again"
    parser.add_argument("--rewind", choices=["skip", "write"], default="skip", help=about)


def ranges(spark: SparkSession, checkpoint: str, number: int) -> list[OffsetRange]:
    """The range of each partition in a batch, sorted. Spark has logged them before it runs the batch."""
    reads: list[OffsetRange] = []
    for source in parse_log(CheckpointFiles(spark, checkpoint).content(f"offsets/{number}")):
        reads += BatchOffset.from_json(json.loads(source.offset)).reads()
    return sorted(reads)


def merge(batch: DataFrame, reads: Sequence[OffsetRange], table: str, rewind: str, unmatched: str = "") -> None:
    """Inserts the records of a batch that the table lacks.

    The literal ranges let the format skip all files whose statistics show other offsets. The condition on ``partition``
    alone is for Delta, which compares only such conditions with concurrent writes. The timestamp tells a recreated
    topic's records from those of the former one.

    Args:
        rewind: with ``write`` the table has a column ``lineage``, and lacks the records that it has of an earlier one.
        unmatched: an action that matches nothing, for a format that checks for conflicts only if there is one.
    """
    if not reads:
        return
    on = f"{_same_record()} AND {_within(reads)}"
    if rewind == "write":
        batch = batch.withColumn("lineage", _lineage(reads))
        on += " AND kept.lineage >= batch.lineage"
    batch.createOrReplaceTempView("batch")
    spark = batch.sparkSession
    retried(
        lambda: spark.sql(f"MERGE INTO {table} AS kept USING batch ON {on} {unmatched} WHEN NOT MATCHED THEN INSERT *")
    )


def _same_record() -> str:
    columns = ("topic", "partition", "offset", "timestamp")
    return " AND ".join([f"kept.{each} = batch.{each}" for each in columns])


def _within(reads: Sequence[OffsetRange]) -> str:
    """The condition that a kept record is in one of these ranges."""
    numbers = sorted({each.partition for each in reads})
    within = []
    for each in reads:
        within.append(
            f"kept.topic = '{each.topic}' AND kept.partition = {each.partition}"
            f" AND kept.offset >= {each.start} AND kept.offset < {each.end}"
        )
    return f"kept.partition IN ({', '.join(map(str, numbers))}) AND ({' OR '.join(within)})"


def _lineage(reads: Sequence[OffsetRange]) -> Column:
    """The lineage of a record's range."""
    entries = []
    for each in reads:
        entries += [F.lit(str(each.tp)), F.lit(each.lineage).cast("long")]
    return F.create_map(*entries)[F.concat_ws("-", "topic", F.col("partition").cast("string"))]


def begin_merging(
    rows: DataFrame, args: argparse.Namespace, table: str, layout: str, unmatched: str = ""
) -> StreamingQuery:
    """Creates the table if it does not exist, and starts the query that merges each batch into it."""
    spark = rows.sparkSession
    columns = rows.schema.toDDL()
    if args.rewind == "write":
        columns += ", lineage BIGINT"
    retried(lambda: spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) {layout}"))

    def write(batch: DataFrame, number: int) -> None:
        merge(batch, ranges(spark, args.checkpoint, number), table, args.rewind, unmatched)

    return begin(rows.writeStream.foreachBatch(write), args)


def retried(write: Callable[[], object]) -> None:
    """Runs a statement again while it conflicts with those of other writers. A merge may run any number of times."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            write()
            return
        except (PySparkException, Py4JJavaError) as error:
            if attempt == ATTEMPTS or not _is_conflict(error):
                raise
        time.sleep(random.uniform(0, min(attempt, MAX_PAUSE_S)))


def _is_conflict(error: Exception) -> bool:
    return any(each in str(error) for each in CONFLICTS)


def first_offset(read: OffsetRange, position: int, lineage: int, rewind: str) -> int:
    """The first offset of the batch that the table lacks; after the write the position is ``read.end`` or this.

    Args:
        position: the table has all records below, of the lineage of the group's offsets in which they were written.

    Raises:
        MissingRows: the table lacks records before the batch, and nobody has moved the group past them.
    """
    is_ahead = read.start > position
    was_moved = read.lineage > lineage
    if was_moved and (is_ahead or rewind == "write"):
        return read.start
    if is_ahead:
        raise MissingRows(
            f"The batch starts at {read.start} in {read.tp}, and the table has the records below {position}. Writing"
            " it would lose the records between them. Another group or an older backup of the table may be the cause."
            f" If they are not needed, set the position in the table to {read.start}."
        )
    return position
