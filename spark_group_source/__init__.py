"""Kafka for PySpark Structured Streaming as a real member of a consumer group.

>>> from spark_group_source import register
>>> register(spark)
>>> spark.readStream.format("kafka-group").option("kafka.group.id", "orders") ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_group_source.kafka_package import defer_clients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.2.0"

defer_clients()  # here, because it must precede each import of kafka-python's messages


def register(spark: SparkSession) -> None:
    """Registers ``format("kafka-group")`` in a Spark session. A second call does no harm."""
    # Imported here, because Spark's workers import this package for each task and need no driver modules.
    from spark_group_source.spark.source import register as register_source

    register_source(spark)


__all__ = ["__version__", "register"]
