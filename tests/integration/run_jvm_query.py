"""Runs one query of Spark's own ``format("kafka")`` with arguments of the jobs; see ``test_migrating_jvm_queries``.

The query writes the places of its source's records to a Parquet file sink, and ends when its trigger does. It needs
nothing of this package, and runs with PySpark 3.5 too.
"""

from __future__ import annotations

from argparse import ArgumentParser

from pyspark.sql import SparkSession


def main() -> None:
    """Ends when the query does; its error is this process' error."""
    parser = ArgumentParser()
    for name in ("bootstrap-servers", "topic", "group", "output", "checkpoint", "max-offsets-per-trigger", "trigger"):
        parser.add_argument(f"--{name}")
    args = parser.parse_args()
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", args.bootstrap_servers)
    source = source.option("subscribe", args.topic).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", args.max_offsets_per_trigger).load().select("partition", "offset")
    writer = rows.writeStream.format("parquet").option("path", args.output)
    writer = writer.option("checkpointLocation", args.checkpoint)
    (writer.trigger(availableNow=True) if args.trigger else writer).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
