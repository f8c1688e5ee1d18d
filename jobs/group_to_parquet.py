"""Copies Kafka topics to Parquet as a member of a consumer group; run it with spark-submit.

    spark-submit jobs/group_to_parquet.py --bootstrap-servers broker:9092 --topic flights --group archive \\
        --output /data/flights --checkpoint /data/flights.checkpoint --trigger available-now --schema "id STRING"

Each micro-batch becomes the directory OUTPUT/run=ID/batch=N, written anew when Spark repeats a batch, so that every
record is there once. ID is the query's, kept in its checkpoint: with a new checkpoint the group's committed offsets say
where to go on, and the old batches stay. (Spark's own Parquet sink would take the first batches of a new checkpoint
for ones that it has already, and drop them.)

Without --schema the columns are key, value, topic, partition, offset and timestamp, as Kafka has them. With it, the
JSON in value becomes the schema's columns, beside topic, partition, offset and timestamp. A record that is not such
JSON is kept: the schema's columns are null, and its text is in _corrupt_record.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from concurrent.futures import Future

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source import register

KAFKA_COLUMNS = ["topic", "partition", "offset", "timestamp"]
START_TIMEOUT_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 done, or stopped by a signal; 1 the query failed; 2 wrong arguments."""
    args = _parser().parse_args(arguments)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    spark = SparkSession.builder.appName(f"group_to_parquet {args.group}").getOrCreate()
    register(spark)
    try:
        _follow(_start(spark, args), stopping)
    except PySparkException as error:
        print(f"group_to_parquet: {error}", file=sys.stderr)
        return 1
    return 0


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of the source; what ``--option`` gives has the last word."""
    options = {"kafka.bootstrap.servers": args.bootstrap_servers, "kafka.group.id": args.group}
    options |= {"subscribe": ",".join(args.topic), "startingOffsets": args.starting_offsets}
    if args.max_offsets_per_trigger:
        options["maxOffsetsPerTrigger"] = str(args.max_offsets_per_trigger)
    return options | dict(args.option)


def shape(source: DataFrame, schema: str | None) -> DataFrame:
    """What is kept of each record: its bytes, or the JSON in its value as columns of the DDL ``schema``."""
    if not schema:
        return source.select("key", "value", *KAFKA_COLUMNS)
    policy = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt_record"}
    parsed = F.from_json(F.col("value").cast("string"), f"{schema}, _corrupt_record STRING", policy)
    return source.select(parsed.alias("value"), *KAFKA_COLUMNS).select("value.*", *KAFKA_COLUMNS)


def _start(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    query_id: Future[str] = Future()

    def write(batch: DataFrame, number: int) -> None:
        # The first batch may come before start() has returned, and with it the id.
        place = f"{args.output}/run={query_id.result(START_TIMEOUT_S)}/batch={number}"
        batch.write.mode("overwrite").parquet(place)

    source = spark.readStream.format("kafka-group").options(**source_options(args)).load()
    stream = shape(source, args.schema).writeStream.foreachBatch(write)
    stream = stream.option("checkpointLocation", args.checkpoint).queryName(args.group)
    if args.trigger == "available-now":
        stream = stream.trigger(availableNow=True)
    elif args.trigger != "default":
        stream = stream.trigger(processingTime=args.trigger)
    query = stream.start()
    query_id.set_result(query.id)
    return query


def _follow(query: StreamingQuery, stopping: threading.Event) -> None:
    """Says what each batch has read until the query ends, or stops it once ``stopping`` is set."""
    last, rows, ended = -1, 0, False
    while not ended:
        if stopping.is_set():
            query.stop()
        ended = bool(query.awaitTermination(1))
        for batch in query.recentProgress:
            if batch.batchId > last and batch.numInputRows:
                last, rows = batch.batchId, rows + batch.numInputRows
                print(f"batch {last}: {batch.numInputRows:,} rows in {batch.batchDuration / 1000:.1f} s", flush=True)
    print(f"read {rows} rows", flush=True)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="group_to_parquet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    add("--topic", required=True, action="append", help="may be given several times, or hold commas")
    add("--group", required=True, help="the consumer group to be a member of")
    add("--output", required=True, help="directory of the Parquet files")
    add("--checkpoint", required=True, help="directory in which the query keeps where it is")
    add("--trigger", default="default", help='available-now, an interval like "10 seconds", or default: at once')
    add("--schema", help='of the JSON in value, as DDL: "id STRING, delay INT"')
    add("--starting-offsets", default="earliest", choices=["earliest", "latest"], help="where the group has none")
    add("--max-offsets-per-trigger", type=int, metavar="N", help="most offsets of a batch")
    add("--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="any other source option")
    return parser


if __name__ == "__main__":
    sys.exit(main())
