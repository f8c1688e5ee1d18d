"""The common parts of the streaming jobs: arguments, start, progress lines and end."""

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
from spark_group_source.errors import OptionError
from spark_group_source.options.properties import read_options

POLL_S = 0.25
KAFKA_COLUMNS = ["topic", "partition", "offset", "timestamp"]


def job_parser(prog: str, about: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of every job."""
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(job=prog)
    add = parser.add_argument
    add("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    add("--topic", required=True, action="append", help="topics separated by commas; may be repeated")
    add("--group", required=True, help="consumer group that the job joins")
    add("--checkpoint", required=True, help="directory of the query's checkpoint")
    add(
        "--trigger",
        default="default",
        help='available-now, an interval such as "10 seconds", or default (the next batch at once)',
    )
    add("--starting-offsets", choices=["earliest", "latest"], help="without a committed offset (default: earliest)")
    add("--max-offsets-per-trigger", type=int, metavar="N", help="maximum number of offsets in a batch")
    add(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other source option; may be repeated. YARN needs a space between two braces of JSON: } }",
    )
    add("--command-config", metavar="FILE", help="properties file with source options, for example with passwords")
    return parser


def add_rewind(parser: argparse.ArgumentParser) -> None:
    """Adds the choice what a rewind of the group means for the table."""
    about = "records that the table has, after the group was moved back: skip them (default), or write them again"
    parser.add_argument("--rewind", choices=["skip", "write"], default="skip", help=about)


def run(
    args: argparse.Namespace,
    start: Callable[[SparkSession, argparse.Namespace], list[StreamingQuery]],
    conf: Mapping[str, str] | None = None,
) -> int:
    """Runs the queries of ``start`` until the last query ends or a signal stops them.

    Args:
        conf: Spark configuration in addition to that of spark-submit.

    Returns:
        The exit code: 0 success or stopped by a signal; 1 a query failed. (Invalid arguments exit with 2.)
    """
    builder = SparkSession.builder.appName(f"{args.job} {args.group}")
    if conf is not None:
        builder = builder.config(map=dict(conf))
    spark = builder.getOrCreate()
    register(spark)
    stopping = threading.Event()
    # After the session has started, because PySpark then sets its own handler of SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        queries = start(spark, args)
    except OptionError as error:  # of the file of --command-config; Spark wraps those of load()
        print(f"{args.job}: {error}", file=sys.stderr)
        return 2
    except PySparkException as error:
        print(f"{args.job}: {error}", file=sys.stderr)
        return 1
    try:
        return _follow([_Followed(query) for query in queries], args.job, stopping)
    except (Py4JError, OSError):
        if not stopping.is_set():
            raise
        return 0  # the JVM also received the signal, and has stopped the queries


def source(spark: SparkSession, args: argparse.Namespace, **more: str) -> DataFrame:
    """The stream of the topics."""
    return spark.readStream.format("kafka-group").options(**source_options(args, **more)).load()


def source_options(args: argparse.Namespace, **more: str) -> dict[str, str]:
    """The options of the source: those of ``--option`` take precedence over ``more``, other arguments and the file."""
    options = {"startingOffsets": "earliest"}
    if args.command_config:
        options |= read_options(args.command_config)
        # The topics are those of --topic.
        options.pop("subscribePattern", None)
        options.pop("assign", None)
    options |= {"kafka.bootstrap.servers": args.bootstrap_servers, "kafka.group.id": args.group}
    options["subscribe"] = ",".join(args.topic)
    if args.starting_offsets:
        options["startingOffsets"] = args.starting_offsets
    if args.max_offsets_per_trigger:
        options["maxOffsetsPerTrigger"] = str(args.max_offsets_per_trigger)
    return options | more | dict(args.option)


def shape(records: DataFrame, schema: str | None) -> DataFrame:
    """The columns of the output: the bytes of each record, or its JSON value as the columns of the DDL ``schema``.

    If the value is not such JSON, the columns are null and ``_corrupt_record`` has the text.
    """
    if not schema:
        return records.select("key", "value", *KAFKA_COLUMNS)
    policy = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt_record"}
    parsed = F.from_json(F.col("value").cast("string"), f"{schema}, _corrupt_record STRING", policy)
    return records.select(parsed.alias("value"), *KAFKA_COLUMNS).select("value.*", *KAFKA_COLUMNS)


def begin(stream: DataStreamWriter, args: argparse.Namespace, name: str = "", table: str = "") -> StreamingQuery:
    """Starts a query. With a name it is one of several, and its checkpoint is a subdirectory of the job's.

    ``table`` is a table in a catalog, for sinks that are tables.
    """
    if name:
        stream = stream.option("checkpointLocation", f"{args.checkpoint}/{name}").queryName(name)
    else:
        stream = stream.option("checkpointLocation", args.checkpoint).queryName(args.group)
    if args.trigger == "available-now":
        stream = stream.trigger(availableNow=True)
    elif args.trigger != "default":
        stream = stream.trigger(processingTime=args.trigger)
    if table:
        return stream.toTable(table)
    return stream.start()


class _Followed:
    """A query, and the progress that the job has printed."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.rows = 0
        self._last = -1

    def print_progress(self) -> None:
        """Prints a line for each new batch with rows."""
        for batch in self.query.recentProgress:
            is_new = batch.batchId > self._last
            if is_new and batch.numInputRows > 0:
                self._last = batch.batchId
                self.rows += batch.numInputRows
                took = f"{batch.numInputRows:,} rows in {batch.batchDuration / 1000:.1f} s"
                print(f"batch {batch.batchId} of {batch.name}: {took}", flush=True)


def _follow(queries: list[_Followed], job: str, stopping: threading.Event) -> int:
    """Prints progress until all queries have ended, and stops them once ``stopping`` is set; returns the exit code."""
    failed = 0
    running = queries
    while running:
        if stopping.wait(POLL_S):
            for followed in running:
                followed.query.stop()
        active, ended = _by_activity(running)
        for followed in running:
            followed.print_progress()
        for followed in ended:
            error = followed.query.exception()
            if error is not None:
                failed = 1
                print(f"{job}: {error}", file=sys.stderr, flush=True)
        running = active
    print(f"read {sum(followed.rows for followed in queries)} rows", flush=True)
    return failed


def _by_activity(queries: list[_Followed]) -> tuple[list[_Followed], list[_Followed]]:
    """The queries that are active, and those that have ended."""
    active, ended = [], []
    for followed in queries:
        if followed.query.isActive:
            active.append(followed)
        else:
            ended.append(followed)
    return active, ended


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("NAME=VALUE is needed, with an equals sign")  # the value may be a secret
    return name, value
