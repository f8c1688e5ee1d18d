"""The batches of a query, with the offset ranges that Spark has logged for each of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from spark_group_source.errors import CheckpointError
from spark_group_source.migration.checkpoint_files import CheckpointFiles
from spark_group_source.migration.offset_log import NOTHING_READ, parse_log
from spark_group_source.offsets import BatchOffset, OffsetRange, in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def foreach_batch(
    stream: DataStreamWriter, checkpoint: str | os.PathLike[str], write: Callable[[DataFrame, list[OffsetRange]], None]
) -> DataStreamWriter:
    """Sets the checkpoint of a stream, and a function that writes each batch, given the batch and its ranges.

    The function runs on the driver, as with Spark's ``foreachBatch``. If it raises, the query fails, and Spark repeats
    the batch after a restart. Set trigger and name before or after, and call ``start()``.

    Args:
        stream: the ``writeStream`` of a DataFrame that comes from ``format("kafka-group")``.
        checkpoint: the query's ``checkpointLocation``, on any file system that Spark reads.
        write: for example the method ``write`` of a sink.
    """

    def of_batch(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_ranges(batch.sparkSession, checkpoint, batch_id))

    return stream.option("checkpointLocation", os.fspath(checkpoint)).foreachBatch(of_batch)


def batch_ranges(spark: SparkSession, checkpoint: str | os.PathLike[str], batch_id: int) -> list[OffsetRange]:
    """The offset range of each partition in a batch, sorted by topic and partition.

    Spark logs the ranges before it runs the batch, so they are available inside ``foreachBatch``. A partition without
    new offsets has no range.

    Args:
        spark: a session that reads the checkpoint.
        checkpoint: the query's own ``checkpointLocation``. With the path of another query, this function would return
            the wrong ranges, and records would be lost.
        batch_id: the second argument of the function of ``foreachBatch``.

    Raises:
        CheckpointError: the checkpoint has no file of this batch, or the file is damaged; the query also has a source
            of another format, whose offsets this function cannot read; or two sources of the query read the same
            partition.
    """
    place = f"{os.fspath(checkpoint)}/offsets/{batch_id}"
    try:
        sources = parse_log(CheckpointFiles(spark, os.fspath(checkpoint)).content(f"offsets/{batch_id}"))
        logged = [json.loads(each.offset) for each in sources if each.offset not in NOTHING_READ]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise CheckpointError(
            f"There is no file {place}.", "Pass the checkpointLocation of the query whose batch is written."
        ) from error
    except ValueError as error:
        raise CheckpointError(f"The ranges of batch {batch_id} cannot be read from {place}: {error}.") from error
    ranges: list[OffsetRange] = []
    for offset in logged:
        if not isinstance(offset, dict):
            raise CheckpointError(f"{place} has {offset!r}, offsets of another source.", "Write it with another query.")
        ranges += BatchOffset.from_json(offset).reads()
    _check_one_range_each(ranges)
    return in_order(ranges)


def _check_one_range_each(ranges: list[OffsetRange]) -> None:
    for tp, times in Counter(each.tp for each in ranges).items():
        if times > 1:
            raise CheckpointError(
                f"{times} sources of the query read {tp}, so topic, partition and offset do not tell their rows apart.",
                "Write each source with a query and a table of its own.",
            )
