"""Copies Kafka topics to Parquet with several queries in one consumer group; run it with spark-submit.

    spark-submit jobs/group_of_queries.py --queries 4 --bootstrap-servers broker:9092 --topic flights --group archive \\
        --output /data/flights --checkpoint /data/flights.checkpoint

Each query is a member of the group with its own partitions, its own pace and its own checkpoint below the job's. If a
query fails, the other queries take over its partitions and continue; when they end, the job exits with 1. Use this job
if a batch waits for a slow system, or if one bad partition must not stop the others.

The output is that of group_to_parquet, with one run=ID for each query. Each record is there once with one exception: if
the job is killed during a rebalance, or restarts after the sessions of its members have expired, another query may get
a partition and read the records of an incomplete batch again. With --static each member keeps its partitions for
kafka.session.timeout.ms, and restarts without a rebalance. No other job may use the same static name.
"""

from __future__ import annotations

import argparse
import sys
import time

from group_to_parquet import copy
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import POLL_S, job_parser, run, shape, source


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 a query failed; 2 invalid arguments."""
    parser = job_parser("group_of_queries", __doc__)
    parser.add_argument("--output", required=True, help="directory for the Parquet files")
    parser.add_argument("--schema", help='columns of the JSON in value as DDL: "id STRING, delay INT"')
    parser.add_argument("--queries", type=int, default=2, metavar="N", help="number of members (default: %(default)s)")
    parser.add_argument("--static", metavar="NAME", help="make static members with the ids NAME-0, NAME-1, ...")
    return run(parser.parse_args(arguments), start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Starts the queries one after another."""
    queries: list[StreamingQuery] = []
    for number in range(args.queries):
        member: dict[str, str] = {}
        if args.static:
            member["kafka.group.instance.id"] = f"{args.static}-{number}"
        queries.append(copy(shape(source(spark, args, **member), args.schema), args, f"query-{number}"))
        # Spark allows ten seconds for the start of a reader process; on a small driver many at once take longer.
        while queries[-1].isActive and queries[-1].status["message"].startswith("Initializing"):
            time.sleep(POLL_S)
    return queries


if __name__ == "__main__":
    sys.exit(main())
