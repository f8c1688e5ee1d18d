"""Reads topics with Spark's JVM source and with this one, into Parquet; run as a process by test_same_rows."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_group_source import register

TIMEOUT_S = 180


def main(servers: str, topics: str, output: str, jars: str) -> None:
    """Writes OUTPUT/kafka and OUTPUT/kafka-group, and each one's schema as JSON beside it."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    register(spark)
    for source in ("kafka", "kafka-group"):
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", servers).option("subscribe", topics)
        reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
        frame = (reader.option("kafka.group.id", "readers-of-both") if source == "kafka-group" else reader).load()
        Path(output, f"{source}.schema").write_text(frame.schema.json())
        writer = frame.writeStream.format("parquet").option("path", f"{output}/{source}")
        query = writer.option("checkpointLocation", f"{output}/checkpoint-{source}").trigger(availableNow=True).start()
        if not query.awaitTermination(TIMEOUT_S):
            raise TimeoutError(f"{source} did not end within {TIMEOUT_S} s")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
