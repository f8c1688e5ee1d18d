"""Runs one query of Spark's own ``format("kafka")`` in a separate process, which can be killed; see ``jvm_query``.

The argument is a directory with ``settings.json``. The query writes the places of its source's records to a Parquet
file sink, and ends when its trigger does. It needs nothing of this package, and runs with PySpark 3.5 too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(place: str) -> None:
    """Ends when the query does; its error is this process' error."""
    settings = json.loads((Path(place) / "settings.json").read_text())
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.readStream.format("kafka").options(**settings["source"]).load().select("partition", "offset")
    writer = rows.writeStream.format("parquet").option("path", settings["output"])
    writer = writer.option("checkpointLocation", settings["checkpoint"])
    (writer.trigger(availableNow=True) if settings["available_now"] else writer).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
