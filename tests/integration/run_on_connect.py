"""A client of a Spark Connect server that reads through it; see ``test_connect``.

The argument is a directory with ``settings.json``: the server's address and the source's options. Rows go to
``output``; what else it found is printed.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_group_source import offsets_of_checkpoint, register
from spark_group_source.errors import CannotMigrate
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import LagReport
from spark_group_source.lag.progress_bar import progress_bar
from tests.integration.query_process import eventually


def main(place: str) -> None:
    """Reads the topic as a stream and as a batch query, and asks for something that is refused."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    options = settings["options"]
    spark = SparkSession.builder.remote(settings["remote"]).getOrCreate()
    register(spark)
    reports: list[LagReport] = []
    spark.streams.addListener(LagListener(reports.append))
    stream = spark.readStream.format("kafka-group").options(**options).load().select("partition", "offset")
    writer = stream.writeStream.format("parquet").option("path", str(work / "output"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    with progress_bar(query, file=io.StringIO()) as bar:
        query.awaitTermination()
    print("bar", bar.n, "of", bar.total)
    eventually(lambda: reports and reports[-1].total == 0, what="a report of no lag")
    print("lag", *sorted((*each.tp, each.position) for each in reports[-1].partitions))
    batch_options = {name: value for name, value in options.items() if name != "kafka.group.id"}
    print("batch", spark.read.format("kafka-group").options(**batch_options).load().count())
    print("moved", offsets_of_checkpoint(spark, settings["old_checkpoint"]))
    try:
        offsets_of_checkpoint(spark, str(work))
    except CannotMigrate as error:
        print("not moved:", error)
    for setting in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
        filtered = spark.read.format("kafka-group").options(**batch_options, pushDownFilters="true").load()
        print("filtered", filtered.where("partition = 1 AND offset >= 45").count())
    try:
        spark.readStream.format("kafka-group").options(**options, typo="1").load().schema  # noqa: B018 -- analyzes it
    except PySparkException as error:
        print("refused", str(error).replace("\n", " "))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
