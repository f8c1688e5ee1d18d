"""Runs one streaming query as a YARN application; see ``test_yarn``.

The argument is a file of settings. Each attempt at a batch is in ``rows/BATCH-TIME.json`` beside it. If there is a file
``hold``, the batch does not end before the file is gone.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register

POLL_S = 0.05


def main(settings_file: str) -> None:
    """Ends when the query does; its error is this process' error."""
    place = Path(settings_file).parent
    settings = json.loads(Path(settings_file).read_text())
    spark = SparkSession.builder.getOrCreate()
    register(spark)

    def keep(batch: DataFrame, number: int) -> None:
        places = [[row.partition, row.offset] for row in batch.select("partition", "offset").collect()]
        written = place / "rows" / f"{number}-{time.time_ns()}.json"
        partial = written.with_suffix(".partial")
        partial.write_text(json.dumps(places))
        partial.rename(written)
        while (place / "hold").exists():
            time.sleep(POLL_S)

    source = spark.readStream.format("kafka-group").options(**settings["options"]).load()
    stream = source.writeStream.foreachBatch(keep).option("checkpointLocation", settings["checkpoint"])
    if settings["available_now"]:
        stream = stream.trigger(availableNow=True)
    stream.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
