"""What the streaming jobs beside this file share: their arguments, how they start, tell what they read, and end."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_group_source import register

POLL_S = 0.25
KAFKA_COLUMNS = ["topic", "partition", "offset", "timestamp"]


def job_parser(prog: str, about: str | None) -> argparse.ArgumentParser:
    """The arguments that every job has."""
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(job=prog)
    add = parser.add_argument
    add("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    add("--topic", required=True, action="append", help="may be given several times, or hold commas")
    add("--group", required=True, help="the consumer group to be a member of")
    add("--checkpoint", required=True, help="directory in which the query keeps where it is")
    add("--trigger", default="default", help='available-now, an interval like "10 seconds", or default: at once')
    add("--starting-offsets", default="earliest", choices=["earliest", "latest"], help="where the group has none")
    add("--max-offsets-per-trigger", type=int, metavar="N", help="most offsets of a batch")
    add("--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="any other source option")
    return parser


def run(
    args: argparse.Namespace,
    start: Callable[[SparkSession, argparse.Namespace], list[StreamingQuery]],
    conf: Mapping[str, str] | None = None,
) -> int:
    """Runs the queries that ``start`` starts, until the last has ended or a signal stops them.

    Args:
        conf: of the Spark session, beside what spark-submit gives.

    Returns:
        The exit code: 0 done, or stopped by a signal; 1 a query failed. (Wrong arguments end with 2.)
    """
    builder = SparkSession.builder.appName(f"{args.job} {args.group}")
    spark = builder.config(map=dict(conf or {})).getOrCreate()
    register(spark)
    stopping = threading.Event()
    # Not before there is a session: PySpark puts its own handler of SIGINT there.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        queries = start(spark, args)
    except PySparkException as error:
        print(f"{args.job}: {error}", file=sys.stderr)
        return 1
    try:
        return _follow([_Followed(each) for each in queries], args.job, stopping)
    except (Py4JError, OSError):
        if not stopping.is_set():
            raise
        return 0  # the JVM had the signal, too, and has ended the queries


def source(spark: SparkSession, args: argparse.Namespace, **more: str) -> DataFrame:
    """The topics as the arguments name them; what ``--option`` gives has the last word."""
    options = {"kafka.bootstrap.servers": args.bootstrap_servers, "kafka.group.id": args.group}
    options |= {"subscribe": ",".join(args.topic), "startingOffsets": args.starting_offsets}
    if args.max_offsets_per_trigger:
        options["maxOffsetsPerTrigger"] = str(args.max_offsets_per_trigger)
    return spark.readStream.format("kafka-group").options(**options | more | dict(args.option)).load()


def shape(records: DataFrame, schema: str | None) -> DataFrame:
    """What is kept of each record: its bytes, or the JSON in its value as columns of the DDL ``schema``.

    What is not such JSON is kept in the column ``_corrupt_record``, beside nulls.
    """
    if not schema:
        return records.select("key", "value", *KAFKA_COLUMNS)
    policy = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt_record"}
    parsed = F.from_json(F.col("value").cast("string"), f"{schema}, _corrupt_record STRING", policy)
    return records.select(parsed.alias("value"), *KAFKA_COLUMNS).select("value.*", *KAFKA_COLUMNS)


def begin(stream: DataStreamWriter, args: argparse.Namespace, name: str = "") -> StreamingQuery:
    """Starts a query; with a name, it is one of several and its checkpoint lies below the job's."""
    checkpoint = f"{args.checkpoint}/{name}" if name else args.checkpoint
    stream = stream.option("checkpointLocation", checkpoint).queryName(name or args.group)
    if args.trigger == "available-now":
        stream = stream.trigger(availableNow=True)
    elif args.trigger != "default":
        stream = stream.trigger(processingTime=args.trigger)
    return stream.start()


class _Followed:
    """A query, and what of it has been told."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.rows = 0
        self._last = -1

    def tell(self) -> None:
        """Says what the batches since the last time have read."""
        for batch in self.query.recentProgress:
            if batch.batchId > self._last and batch.numInputRows:
                self._last, self.rows = batch.batchId, self.rows + batch.numInputRows
                took = f"{batch.numInputRows:,} rows in {batch.batchDuration / 1000:.1f} s"
                print(f"batch {batch.batchId} of {batch.name}: {took}", flush=True)


def _follow(queries: list[_Followed], job: str, stopping: threading.Event) -> int:
    """Tells of the queries until all have ended, or stops them once ``stopping`` is set; the job's exit code."""
    failed = 0
    running = queries
    while running:
        if stopping.wait(POLL_S):
            for each in running:
                each.query.stop()
        ended = [each for each in running if not each.query.isActive]
        for each in running:
            each.tell()
        for error in filter(None, (each.query.exception() for each in ended)):
            failed = 1
            print(f"{job}: {error}", file=sys.stderr, flush=True)
        running = [each for each in running if each not in ended]
    print(f"read {sum(each.rows for each in queries)} rows", flush=True)
    return failed


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
