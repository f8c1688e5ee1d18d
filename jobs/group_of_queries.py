"""Copies Kafka topics to Parquet by several queries that are one consumer group; run it with spark-submit.

    spark-submit jobs/group_of_queries.py --queries 4 --bootstrap-servers broker:9092 --topic flights --group archive \\
        --output /data/flights --checkpoint /data/flights.checkpoint

Each query is a member of the group: it owns a part of the partitions, works at its own pace, and has its own checkpoint
below the job's. A query that fails leaves its partitions to the others, which go on; the job then ends with 1 when they
have ended. Worth it where a batch waits for something that is slow, or where one bad partition must not hold up all.

The output is that of group_to_parquet, with a run=ID for each query. Each record is there once, but for one case: when
the job is killed while partitions are handed over, or starts again after its members' sessions have ended, partitions
may go to another query, which reads again what was in the batch that was cut short. With --static they stay where they
were for as long as kafka.session.timeout.ms, and start again without a rebalance. Its names must be this job's alone.
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
    """Runs the job. Exit codes: 0 done, or stopped by a signal; 1 a query failed; 2 wrong arguments."""
    parser = job_parser("group_of_queries", __doc__)
    parser.add_argument("--output", required=True, help="directory of the Parquet files")
    parser.add_argument("--schema", help='of the JSON in value, as DDL: "id STRING, delay INT"')
    parser.add_argument("--queries", type=int, default=2, metavar="N", help="members of the group; %(default)s")
    parser.add_argument("--static", metavar="NAME", help="static members, called NAME-0, NAME-1, ...")
    return run(parser.parse_args(arguments), start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Starts the queries, one after the other."""
    queries: list[StreamingQuery] = []
    for number in range(args.queries):
        member = {"kafka.group.instance.id": f"{args.static}-{number}"} if args.static else {}
        queries.append(copy(shape(source(spark, args, **member), args.schema), args, f"query-{number}"))
        # Spark gives the process of a reader ten seconds to start: many at once take longer on a small driver.
        while queries[-1].isActive and queries[-1].status["message"].startswith("Initializing"):
            time.sleep(POLL_S)
    return queries


if __name__ == "__main__":
    sys.exit(main())
