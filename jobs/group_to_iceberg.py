"""Appends Kafka topics to an Iceberg table, each record exactly once; run it with spark-submit.

    spark-submit --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 jobs/group_to_iceberg.py \\
        --bootstrap-servers broker:9092 --topic flights --group lake --warehouse /data/warehouse \\
        --table lake.db.flights --checkpoint /data/flights.checkpoint --schema "id STRING, delay INT"

Each batch is an insert-only MERGE on topic, partition, offset and timestamp, so the table has each record once,
whatever fails and however many members write it. If the group was moved back, --rewind says what happens to records
that the table has.

The columns are those of group_to_parquet. If the table does not exist, the job creates it, partitioned by Kafka's
partition and the day of the record's timestamp. With --warehouse the first part of --table is a catalog of files in
this directory, which only the queries of one application may write at once. Otherwise it is a catalog of Spark's
configuration. The Iceberg package must match the version of Spark, here 4.1; Iceberg 1.12
has none for Spark 4.2 and 4.3.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import add_rewind, begin, job_parser, run, shape, source

from spark_group_source.exactly_once import IcebergSink, foreach_batch


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("group_to_iceberg", __doc__)
    parser.add_argument("--table", required=True, metavar="CATALOG.DATABASE.TABLE")
    parser.add_argument("--warehouse", help="directory of a Hadoop catalog; by default the catalog must be configured")
    parser.add_argument("--schema", help='columns of the JSON in value as DDL: "id STRING, delay INT"')
    add_rewind(parser)
    args = parser.parse_args(arguments)
    return run(args, start, hadoop_catalog(args.table.partition(".")[0], args.warehouse) if args.warehouse else {})


def hadoop_catalog(name: str, warehouse: str) -> dict[str, str]:
    """Spark's configuration of a catalog that needs no service: its tables are directories of ``warehouse``."""
    catalog = f"spark.sql.catalog.{name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": warehouse,
    }


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Creates the table and starts the query."""
    rows = shape(source(spark, args), args.schema)
    sink = IcebergSink(args.table, rewind=args.rewind)
    sink.create(rows)
    return [begin(foreach_batch(rows.writeStream, args.checkpoint, sink.write), args)]


if __name__ == "__main__":
    sys.exit(main())
