"""Runs one streaming query of a group in a process of its own, so that it can be killed; see ``query_process``.

The argument is a directory with ``settings.json``. Each attempt at a batch is written to ``rows/BATCH-ATTEMPT.json`` of
the checkpoint before the batch may end; if it is to be held, not before there is a file ``release``. The end of stdin
stops the query.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register
from tests.integration.micro_batches import write

POLL_S = 0.02


def main(place: str) -> None:
    """Ends when the query does; its error is this process' error."""
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    rows = Path(settings["checkpoint"]) / "rows"
    rows.mkdir(parents=True)
    builder = SparkSession.builder.master("local[1]").config("spark.driver.memory", "512m")
    spark = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1").getOrCreate()
    register(spark)

    def keep(batch: DataFrame, number: int) -> None:
        places = batch.select("partition", "offset").collect()
        attempt = len(list(rows.glob(f"{number}-*.json")))
        write(rows / f"{number}-{attempt}.json", sorted(places))
        while settings["held"] and not (work / "release").exists():
            time.sleep(POLL_S)

    if settings["beside"]:
        other = {**settings["options"], "kafka.group.id": settings["beside"]}
        spark.readStream.format("kafka-group").options(**other).load().writeStream.format("noop").start()
    source = spark.readStream.format("kafka-group").options(**settings["options"]).load()
    stream = source.writeStream.foreachBatch(keep).option("checkpointLocation", settings["checkpoint"])
    query = (stream.trigger(availableNow=True) if settings["available_now"] else stream).start()

    def stop_when_told() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_when_told, daemon=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
