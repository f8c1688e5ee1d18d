"""Counts events in time windows and writes each window when it is complete; run it with spark-submit.

    spark-submit jobs/windowed_counts.py --bootstrap-servers broker:9092 --topic flights --group counts \\
        --schema "carrier STRING, departure TIMESTAMP" --time departure --window "1 hour" --watermark "10 minutes" \\
        --by carrier --output /data/counts --checkpoint /data/counts.checkpoint

A window is complete when an event is later than the window's end plus the watermark. The job ignores events that come
after that. The output has each window once for each value of the --by columns. Read it with Spark: Spark's Parquet sink
lists the files of completed batches in OUTPUT/_spark_metadata.

The checkpoint contains the open windows, and the offsets of their events are already committed to the group. Keep the
checkpoint. Without it, reset the group's offsets to before the oldest open window, and write to a new directory. Give
this query its own group, because two members would each count a part of a window.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import begin, job_parser, run, shape, source


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("windowed_counts", __doc__)
    add = parser.add_argument
    add("--output", required=True, help="directory for the Parquet files")
    add("--schema", help='columns of the JSON in value as DDL: "carrier STRING, departure TIMESTAMP"')
    add("--time", default="timestamp", metavar="COLUMN", help="time of an event (default: Kafka's timestamp)")
    add("--window", default="10 minutes", help="length of a window (default: %(default)s)")
    add("--watermark", default="10 minutes", help="maximum delay of an event (default: %(default)s)")
    add(
        "--by",
        action="append",
        default=[],
        metavar="COLUMN",
        help="count each value of this column separately; may be repeated",
    )
    return run(parser.parse_args(arguments), start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Starts the query."""
    events = shape(source(spark, args), args.schema).withWatermark(args.time, args.watermark)
    counts = events.groupBy(F.window(args.time, args.window), *args.by).count()
    windows = counts.select("window.start", "window.end", *args.by, "count")
    return [begin(windows.writeStream.format("parquet").outputMode("append").option("path", args.output), args)]


if __name__ == "__main__":
    sys.exit(main())
