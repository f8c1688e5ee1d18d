"""Counts events in windows of time, each window once it is complete; run it with spark-submit.

    spark-submit jobs/windowed_counts.py --bootstrap-servers broker:9092 --topic flights --group counts \\
        --schema "carrier STRING, departure TIMESTAMP" --time departure --window "1 hour" --watermark "10 minutes" \\
        --by carrier --output /data/counts --checkpoint /data/counts.checkpoint

A window is written when an event has come that is later than its end by the watermark; an event that comes later still
is left out. Each window is there once for each value of the columns in --by: Spark's Parquet sink lists the files of
completed batches in OUTPUT/_spark_metadata, so read it with Spark.

Open windows live in the checkpoint, not in the group: the offsets of what they hold are committed already. So keep the
checkpoint; without it set the group back to before the oldest open window, and write to a new directory. For the same
reason give this query a group of its own: two members would each count a part of a window.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import begin, job_parser, run, shape, source


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 done, or stopped by a signal; 1 the query failed; 2 wrong arguments."""
    parser = job_parser("windowed_counts", __doc__)
    add = parser.add_argument
    add("--output", required=True, help="directory of the Parquet files")
    add("--schema", help='of the JSON in value, as DDL: "carrier STRING, departure TIMESTAMP"')
    add("--time", default="timestamp", metavar="COLUMN", help="when an event happened; Kafka's timestamp")
    add("--window", default="10 minutes", help="length of a window; %(default)s")
    add("--watermark", default="10 minutes", help="how late an event may come; %(default)s")
    add("--by", action="append", default=[], metavar="COLUMN", help="counted apart; may be given several times")
    return run(parser.parse_args(arguments), start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Starts the query."""
    events = shape(source(spark, args), args.schema).withWatermark(args.time, args.watermark)
    counts = events.groupBy(F.window(args.time, args.window), *args.by).count()
    windows = counts.select("window.start", "window.end", *args.by, "count")
    return [begin(windows.writeStream.format("parquet").outputMode("append").option("path", args.output), args)]


if __name__ == "__main__":
    sys.exit(main())
