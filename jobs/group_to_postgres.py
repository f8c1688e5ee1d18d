"""Writes Kafka topics to a PostgreSQL table: the latest record of each key, or every record; run it with spark-submit.

    PGPASSWORD=... spark-submit jobs/group_to_postgres.py --bootstrap-servers broker:9092 --topic flights \\
        --group flights-table --checkpoint /data/flights.checkpoint \\
        --postgres "host=db dbname=lake user=spark" --table flights

The driver and the executors need psycopg: pip install "psycopg[binary]". The job creates the table if it does not
exist: topic, key, value, partition, offset, timestamp, with the primary key topic, key. A record replaces a row only if
its timestamp is later, or with an equal timestamp its offset is higher. A repeated or reordered write changes
nothing: a repeated batch or task, a lost checkpoint, several members of the group. A record without a value writes a
row with a null value; a record without a key ends the query.

With --append the table has a row for every record, and each exactly once, whatever fails and however many members write
it. The job keeps the table's positions in the table TABLE_positions, and creates an unlogged table kafka_stage_... for
each batch. If the group was moved back, --rewind says what happens to records that the table has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from stream_job import add_rewind, begin, job_parser, run, shape, source

from spark_group_source.exactly_once import foreach_batch
from spark_group_source.exactly_once.postgres import PostgresSink, zoned

TABLE = SQL("""CREATE TABLE IF NOT EXISTS {} (key bytea, value bytea, topic text, "partition" int, "offset" bigint,
    "timestamp" timestamptz, PRIMARY KEY (topic, key))""")
COPY = SQL('COPY batch (key, value, topic, "partition", "offset", "timestamp") FROM STDIN')
BATCH = SQL("CREATE TEMPORARY TABLE batch (LIKE {}) ON COMMIT DROP")
# Sorted, so that two tasks lock equal keys in the same order; otherwise they could deadlock.
UPSERT = SQL("""INSERT INTO {} AS kept
    SELECT DISTINCT ON (topic, key) * FROM batch ORDER BY topic, key, "timestamp" DESC, "offset" DESC
    ON CONFLICT (topic, key) DO UPDATE SET value = excluded.value, "partition" = excluded."partition",
        "offset" = excluded."offset", "timestamp" = excluded."timestamp"
    WHERE (kept."timestamp", kept."offset") < (excluded."timestamp", excluded."offset")""")


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("group_to_postgres", __doc__)
    parser.add_argument(
        "--postgres", required=True, metavar="CONNINFO", help="libpq connection string without the password"
    )
    parser.add_argument("--table", required=True, help="table, with its schema if needed: lake.flights")
    parser.add_argument("--append", action="store_true", help="a row for every record, not for the latest of each key")
    add_rewind(parser)
    args = parser.parse_args(arguments)
    if args.rewind != "skip" and not args.append:
        parser.error("--rewind needs --append: without it the table has the latest record of each key in any case")
    return run(args, start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Creates the table and starts the query."""
    records = shape(source(spark, args), None)
    if args.append:
        return [begin(appending(records, args), args)]
    database = make_conninfo(args.postgres, password=os.environ.get("PGPASSWORD"))
    table = Identifier(*args.table.split("."))
    with psycopg.connect(database) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [args.table])  # members may start at once
        connection.execute(TABLE.format(table))

    def write(batch: DataFrame, _: int) -> None:
        batch.foreachPartition(lambda rows: upsert(rows, database, table))

    # Text with a time zone: a Python timestamp would be in local time.
    timed = records.withColumn("timestamp", zoned(F.col("timestamp")))
    return [begin(timed.writeStream.foreachBatch(write), args)]


def appending(records: DataFrame, args: argparse.Namespace) -> DataStreamWriter:
    """The stream that writes each record exactly once, with its tables."""
    sink = PostgresSink(args.postgres, args.table, password=os.environ.get("PGPASSWORD"), rewind=args.rewind)
    sink.create(records)
    return foreach_batch(records.writeStream, args.checkpoint, sink.write)


def upsert(rows: Iterable[Sequence[object]], database: str, table: Identifier) -> None:
    """Writes the rows of one task in one transaction, on an executor."""
    with psycopg.connect(database) as connection:
        connection.execute(BATCH.format(table))
        with connection.cursor() as cursor, cursor.copy(COPY) as written:
            for row in rows:
                written.write_row(row)
        connection.execute(UPSERT.format(table))


if __name__ == "__main__":
    sys.exit(main())
