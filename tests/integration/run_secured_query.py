"""Runs queries with secrets in their options and prints all that Spark tells of them; see test_secured_query.

The argument is a directory with ``settings.json``: options of a query that succeeds, and of one that is not let in.
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
    """Writes rows to ``rows``, what Spark's history shows to ``events``, and everything else to the console."""
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
    for name in ("good", "bad"):
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
        print(name, "told:", query.lastProgress, query.recentProgress, query.status)
    for wrong in settings["wrong"]:
        try:
            spark.readStream.format("kafka-group").options(**wrong).load()
        except Exception as error:
            print("refused:", error, repr(error))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
