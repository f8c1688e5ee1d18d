"""Writes the latest record of each key of Kafka topics to a PostgreSQL table; run it with spark-submit.

    PGPASSWORD=... spark-submit jobs/group_to_postgres.py --bootstrap-servers broker:9092 --topic flights \\
        --group flights-table --checkpoint /data/flights.checkpoint \\
        --postgres "host=db dbname=lake user=spark" --table flights

The driver and the executors need psycopg: pip install "psycopg[binary]". The job creates the table if it does not
exist: topic, key, value, partition, offset, timestamp, with the primary key topic, key. A record replaces a row only if
its timestamp is later, or with an equal timestamp its offset is higher. A repeated or reordered write changes
nothing: a repeated batch or task, a lost checkpoint, several members of the group. A record without a value writes a
row with a null value; a record without a key ends the query.
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
from stream_job import begin, job_parser, run, shape, source

TABLE = SQL("""CREATE TABLE IF NOT EXISTS {} (key bytea, value bytea, topic text, "partition" int, "offset" bigint,
    "timestamp" timestamptz, PRIMARY KEY (topic, key))""")
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
    return run(parser.parse_args(arguments), start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Creates the table and starts the query."""
    database = make_conninfo(args.postgres, password=os.environ.get("PGPASSWORD"))
    table = Identifier(*args.table.split("."))
    with psycopg.connect(database) as connection:
        connection.execute(TABLE.format(table))

    def write(batch: DataFrame, number: int) -> None:
        batch.foreachPartition(lambda rows: upsert(rows, database, table))

    # Text with a time zone: a Python timestamp would be in local time.
    zoned = F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss.SSSXXX")
    records = shape(source(spark, args), None).withColumn("timestamp", zoned)
    return [begin(records.writeStream.foreachBatch(write), args)]


def upsert(rows: Iterable[Sequence[object]], database: str, table: Identifier) -> None:
    """Writes the rows of one task in one transaction, on an executor."""
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(BATCH.format(table))
        with cursor.copy("COPY batch FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        cursor.execute(UPSERT.format(table))


if __name__ == "__main__":
    sys.exit(main())
