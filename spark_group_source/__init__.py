"""Kafka for PySpark Structured Streaming as a real member of a consumer group.

>>> from spark_group_source import register
>>> register(spark)
>>> spark.readStream.format("kafka-group").option("kafka.group.id", "orders") ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.2.0"


def register(spark: SparkSession) -> None:
    """Makes ``format("kafka-group")`` known to a Spark session. Repeating it does no harm."""
    # Imported here: Spark's workers import this package for each task, and need nothing of the driver's.
    from spark_group_source.spark.source import register as register_source

    register_source(spark)


__all__ = ["__version__", "register"]
