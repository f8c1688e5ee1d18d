"""Runs queries with secrets in their options, and prints all that Spark shows of them.

The argument is a directory with ``settings.json``: the options of queries by name, and under ``wrong`` a list of
options that ``load()`` refuses. See ``run_secured`` in ``secured.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_group_source import register

TIMEOUT_S = 180


def main(place: str) -> None:
    """Writes each query's rows to a directory of its name, Spark's history to ``events``, the rest to the console."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    (work / "events").mkdir()
    spark = (
        SparkSession.builder.master("local[1]")
        .appName("secured")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (work / "events").as_uri())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    register(spark)
    refused = settings.pop("wrong")
    for name in settings:
        frame = spark.readStream.format("kafka-group").options(**settings[name]).load()
        frame.explain(True)
        print(frame, frame.schema, repr(frame))
        frame.createOrReplaceTempView("secured")
        spark.sql("explain extended select * from secured").show(truncate=False)
        stream = frame.writeStream.format("json").option("path", str(work / name)).queryName(name)
        query = stream.option("checkpointLocation", str(work / f"checkpoint-{name}")).trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(TIMEOUT_S):
                raise TimeoutError(f"{name} did not end within {TIMEOUT_S} s")
        except StreamingQueryException as error:
            print(name, "failed:", error, repr(error), query.exception())
        query.explain(True)
        print(name, "progress:", query.lastProgress, query.recentProgress, query.status)
    for wrong in refused:
        try:
            spark.readStream.format("kafka-group").options(**wrong).load()
        except Exception as error:
            print("refused:", error, repr(error))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
