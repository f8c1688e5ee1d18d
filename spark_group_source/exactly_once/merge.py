"""Tables of Delta and Iceberg: a MERGE inserts the records of a batch that the table lacks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 -- its customary name

from spark_group_source.exactly_once.positions import Rewind, check_rewind
from spark_group_source.exactly_once.record_columns import check_record_columns
from spark_group_source.offsets import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD = ("topic", "partition", "offset", "timestamp")
"""The columns that identify a record. The timestamp distinguishes the records of a recreated topic from those of the
former topic."""

ATTEMPTS = 20
MAX_PAUSE_S = 5.0
CONFLICTS = (
    "DELTA_CONCURRENT",
    "ConcurrentAppend",
    "MetadataChanged",
    "ProtocolChanged",
    "conflicting files",
    "CommitFailed",
    # Another member creates the table: its directory exists, and the table's first version does not yet.
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
)


class MergeSink:
    """A table of a format with MERGE, in which each record of Kafka is one row.

    The rows have the columns ``topic``, ``partition``, ``offset`` and ``timestamp`` as the source returns them, and any
    others. There is at most one row for each record. All writers of the table must use this MERGE.

    Args:
        table: its name in SQL, for example ``lake.db.orders``.
        rewind: with ``write`` the table also has a column ``lineage`` of type BIGINT.
    """

    LAYOUT = ""
    """The text after the columns in CREATE TABLE."""
    UNMATCHED = ""
    """An action that matches no row, for a format that checks for conflicts only if the MERGE has such an action."""

    def __init__(self, table: str, *, rewind: Rewind = "skip") -> None:
        check_rewind(rewind)
        self._table = table
        self._rewind = rewind

    def create(self, rows: DataFrame) -> None:
        """Creates the table with the columns of ``rows``, if it does not exist. Several members may do so at once.

        Raises:
            ValueError: ``rows`` lacks a column that identifies records.
        """
        check_record_columns(self._table, rows.columns, RECORD)
        columns = rows.schema.toDDL()
        if self._rewind == "write":
            columns += ", lineage BIGINT"
        spark = rows.sparkSession
        retried(lambda: spark.sql(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) {self.LAYOUT}"))

    def write(self, batch: DataFrame, reads: Sequence[OffsetRange]) -> None:
        """Inserts the rows of a batch that the table lacks, and retries while other writers interfere.

        Args:
            batch: the rows, with the columns of the table.
            reads: the ranges of the batch, from :func:`foreach_batch` or :func:`batch_ranges`.

        Raises:
            ValueError: ``batch`` lacks a column that identifies records; or with ``rewind="write"`` the table has no
                column ``lineage``.
        """
        if not reads:
            return
        check_record_columns(self._table, batch.columns, RECORD)
        spark = batch.sparkSession
        has_lineages = "lineage" in spark.sql(f"SELECT * FROM {self._table} LIMIT 0").columns
        on = merge_condition(reads)
        if self._rewind == "write":
            _check_lineages(self._table, has_lineages)
            # Rows from before the column have none.
            on += " AND coalesce(kept.lineage, 0) >= batch.lineage"
        has_own_column = self._rewind == "skip" and "lineage" in batch.columns
        if has_lineages and not has_own_column:
            batch = batch.withColumn("lineage", _lineage(reads))
        batch.createOrReplaceTempView("batch")
        actions = f"{self.UNMATCHED} WHEN NOT MATCHED THEN INSERT *"
        retried(lambda: spark.sql(f"MERGE INTO {self._table} AS kept USING batch ON {on} {actions}"))


class DeltaSink(MergeSink):
    """A Delta table.

    ``create`` partitions the table by Kafka's partition, so that members write different parts and do not conflict.
    ``DeltaSink("delta.`/data/orders`")`` names a table by its directory.
    """

    LAYOUT = "USING delta PARTITIONED BY (partition)"


class IcebergSink(MergeSink):
    """An Iceberg table. An existing table needs ``write.merge.mode=merge-on-read``.

    Spark runs a MERGE that can only insert as a plain append, for which Iceberg does not check whether another writer
    has added the same rows since. ``UNMATCHED`` therefore adds a branch that matches no row.
    """

    LAYOUT = """USING iceberg PARTITIONED BY (partition, days(timestamp))
        TBLPROPERTIES ('write.merge.mode' = 'merge-on-read', 'write.merge.isolation-level' = 'serializable')"""
    UNMATCHED = "WHEN MATCHED AND false THEN DELETE"


def merge_condition(reads: Sequence[OffsetRange], kept: str = "kept", batch: str = "batch") -> str:
    """The condition of a MERGE that a row of the table and a row of the batch are the same record.

    With the literal ranges, the format skips all files whose statistics show other offsets. The separate condition on
    ``partition`` is for Delta, which compares only such conditions with concurrent writes.

    Args:
        reads: the ranges of the batch, at least one.
        kept: the alias of the table.
        batch: the alias of the rows of the batch.

    Raises:
        ValueError: there is no range.
    """
    if not reads:
        raise ValueError("a batch without ranges has no rows to merge")
    same = " AND ".join([f"{kept}.{each} = {batch}.{each}" for each in RECORD])
    numbers = sorted({each.partition for each in reads})
    within = []
    for each in reads:
        within.append(
            f"{kept}.topic = '{each.topic}' AND {kept}.partition = {each.partition}"
            f" AND {kept}.offset >= {each.start} AND {kept}.offset < {each.end}"
        )
    return f"{same} AND {kept}.partition IN ({', '.join(map(str, numbers))}) AND ({' OR '.join(within)})"


def retried(write: Callable[[], object]) -> None:
    """Runs a statement, and repeats it while it conflicts with other writers. A merge may run any number of times."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            write()
            return
        except (PySparkException, Py4JJavaError) as error:
            if attempt == ATTEMPTS or not _is_conflict(error):
                raise
        time.sleep(random.uniform(0, min(attempt, MAX_PAUSE_S)))


def _check_lineages(table: str, has_lineages: bool) -> None:
    if not has_lineages:
        raise ValueError(
            f"the table {table} has no column lineage, which rewind='write' needs. Stop all queries that write it, and"
            f" before you move the group run: ALTER TABLE {table} ADD COLUMN lineage BIGINT; UPDATE {table} SET lineage"
            " = unix_millis(current_timestamp())"
        )


def _lineage(reads: Sequence[OffsetRange]) -> Column:
    """The lineage of a record's range."""
    entries = []
    for each in reads:
        entries += [F.lit(f"{each.topic}-{each.partition}"), F.lit(each.lineage).cast("long")]
    return F.create_map(*entries)[F.concat_ws("-", "topic", F.col("partition").cast("string"))]


def _is_conflict(error: Exception) -> bool:
    return any(each in str(error) for each in CONFLICTS)
