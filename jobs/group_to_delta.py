"""Appends Kafka topics to a Delta table, each record exactly once; run it with spark-submit.

    spark-submit --packages io.delta:delta-spark_4.1_2.13:4.4.0 jobs/group_to_delta.py \\
        --bootstrap-servers broker:9092 --topic flights --group lake \\
        --output /data/flights --checkpoint /data/flights.checkpoint --schema "id STRING, delay INT"

Each batch is an insert-only MERGE on topic, partition, offset and timestamp, so the table has each record once,
whatever fails and however many members write it. If the group was moved back, --rewind says what happens to records
that the table has.

The columns are those of group_to_parquet. If the table does not exist, the job creates it, partitioned by Kafka's
partition: members then write different parts of the table and do not conflict. The Delta package must match the version
of Spark, here 4.1; Delta 4.4 has delta-spark_4.2_2.13 for Spark 4.2, and none for 4.3.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import add_rewind, begin, job_parser, run, shape, source

from spark_group_source.exactly_once import DeltaSink, foreach_batch

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("group_to_delta", __doc__)
    parser.add_argument("--output", required=True, help="directory of the Delta table")
    parser.add_argument("--schema", help='columns of the JSON in value as DDL: "id STRING, delay INT"')
    add_rewind(parser)
    return run(parser.parse_args(arguments), start, DELTA)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Creates the table and starts the query."""
    rows = shape(source(spark, args), args.schema)
    sink = DeltaSink(f"delta.`{args.output}`", rewind=args.rewind)
    sink.create(rows)
    return [begin(foreach_batch(rows.writeStream, args.checkpoint, sink.write), args)]


if __name__ == "__main__":
    sys.exit(main())
