"""A client of a Spark Connect server that reads through it; see ``test_connect``.

The argument is a directory with ``settings.json``: the server's address and the source's options. Rows go to
``output``; what else it found is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_group_source import register


def main(place: str) -> None:
    """Reads the topic as a stream and as a bounded read, and asks for something that is refused."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    options = settings["options"]
    spark = SparkSession.builder.remote(settings["remote"]).getOrCreate()
    register(spark)
    stream = spark.readStream.format("kafka-group").options(**options).load().select("partition", "offset")
    writer = stream.writeStream.format("parquet").option("path", str(work / "output"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    print("streamed", query.lastProgress["numInputRows"] if query.lastProgress else None)
    bounded = {name: value for name, value in options.items() if name != "kafka.group.id"}
    print("bounded", spark.read.format("kafka-group").options(**bounded).load().count())
    try:
        spark.readStream.format("kafka-group").options(**options, typo="1").load().schema  # noqa: B018 -- analyzes it
    except PySparkException as error:
        print("refused", str(error).replace("\n", " "))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
