"""Appends Kafka topics to a Delta table, each record exactly once; run it with spark-submit.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 jobs/group_to_delta.py \\
        --bootstrap-servers broker:9092 --topic flights --group lake \\
        --output /data/flights --checkpoint /data/flights.checkpoint --schema "id STRING, delay INT"

Delta stores the query's id and the batch number in the same commit as the rows, and skips a batch that the table
already has. The table has each batch once, even if Spark repeats it after a failure. With a new checkpoint the query
continues at the group's committed offsets. If the checkpoint was lost during a batch, the table may have this batch
twice; topic, partition and offset identify the duplicates.

The columns are those of group_to_parquet. The first batch creates the table. The Delta package must match the version
of Spark, here 4.1; Delta 4.4 has delta-spark_4.2_2.13 for Spark 4.2, and none for 4.3.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import begin, job_parser, run, shape, source

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("group_to_delta", __doc__)
    parser.add_argument("--output", required=True, help="directory of the Delta table")
    parser.add_argument("--schema", help='columns of the JSON in value as DDL: "id STRING, delay INT"')
    return run(parser.parse_args(arguments), start, DELTA)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Starts the query."""
    rows = shape(source(spark, args), args.schema)
    return [begin(rows.writeStream.format("delta").outputMode("append").option("path", args.output), args)]


if __name__ == "__main__":
    sys.exit(main())
