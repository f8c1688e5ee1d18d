"""Kafka for PySpark Structured Streaming as a real member of a consumer group.

>>> from spark_group_source import register
>>> register(spark)
>>> spark.readStream.format("kafka-group").option("kafka.group.id", "orders") ...
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spark_group_source.kafka_package import decode_without_assertions, defer_clients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.2.0"

defer_clients()  # here, because it must precede each import of kafka-python's messages
decode_without_assertions()


def register(spark: SparkSession) -> None:
    """Registers ``format("kafka-group")`` in a Spark session. Repeated calls do nothing."""
    # Imported here, because Spark's workers import this package for each task and need no driver modules.
    from spark_group_source.spark.source import register as register_source

    register_source(spark)


def offsets_of_checkpoint(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    *,
    source: str | int | None = None,
    without_state: bool = False,
) -> str:
    """Returns the position of a stopped query with ``format("kafka")``, as a value of ``startingOffsets``.

    Spark reads the files, so the path may be on any file system that this session reads. Nothing is written.

    Args:
        spark: a classic session, or one of Spark Connect.
        checkpoint: the old query's ``checkpointLocation``.
        source: which source to take, if the query has several: its topics, as in ``subscribe``, or its number in the
            order in which the query uses the sources, from 0.
        without_state: whether the new query may start without the state of the old one (aggregations,
            deduplication, joins).

    Returns:
        JSON with the next offset of each partition, and ``"*":-2``. So partitions that were added later start at the
            earliest offset, and the new query fails if its group has committed other offsets.

    Raises:
        CannotMigrate: the last batch is not complete, the query has state, or the files are not such a checkpoint.
        pyspark.errors.PySparkException: Spark cannot read the files.
    """
    from spark_group_source.migration.position import starting_offsets

    return starting_offsets(spark, os.fspath(checkpoint), source, without_state)


__all__ = ["__version__", "offsets_of_checkpoint", "register"]
