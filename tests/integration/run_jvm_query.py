"""Runs one query of Spark's own ``format("kafka")`` in a separate process, which can be killed; see ``jvm_query``.

The argument is a directory with ``settings.json``. The query writes the union of its sources to a Parquet file sink. It
ends when its trigger does; a file ``stop`` stops it. It needs nothing of this package, and runs with PySpark 3.5 too.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

POLL_S = 1
"""Whole seconds, as Spark 3.5 takes no others."""


def source(spark: SparkSession, number: int, options: dict[str, str]) -> DataFrame:
    """The places of the records of one source."""
    rows = spark.readStream.format("kafka").options(**options).load()
    return rows.select(lit(number).alias("source"), "topic", "partition", "offset")


def main(place: str) -> None:
    """Ends when the query does; its error is this process' error."""
    settings = json.loads((Path(place) / "settings.json").read_text())
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
    spark = builder.getOrCreate()
    frames = [source(spark, number, options) for number, options in enumerate(settings["sources"])]
    rows = functools.reduce(DataFrame.union, frames)
    writer = rows.writeStream.format("parquet").option("path", settings["output"])
    writer = writer.option("checkpointLocation", settings["checkpoint"])
    query = (writer.trigger(availableNow=True) if settings["available_now"] else writer).start()

    while not query.awaitTermination(POLL_S):
        if (Path(place) / "stop").exists():
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
