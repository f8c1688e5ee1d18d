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
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
from exactly_once import add_rewind, first_offset, ranges
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its customary name
from pyspark.sql.streaming.query import StreamingQuery
from stream_job import begin, job_parser, run, shape, source

from spark_group_source.offsets import OffsetRange

COLUMNS = SQL('key, value, topic, "partition", "offset", "timestamp"')
TABLE = SQL("""CREATE TABLE IF NOT EXISTS {} (key bytea, value bytea, topic text, "partition" int, "offset" bigint,
    "timestamp" timestamptz, PRIMARY KEY (topic, key))""")
ROWS = SQL("""CREATE TABLE IF NOT EXISTS {} (key bytea, value bytea, topic text, "partition" int, "offset" bigint,
    "timestamp" timestamptz)""")
COPY = SQL("COPY {} ({columns}) FROM STDIN")
BATCH = SQL("CREATE TEMPORARY TABLE batch (LIKE {}) ON COMMIT DROP")
# Sorted, so that two tasks lock equal keys in the same order; otherwise they could deadlock.
UPSERT = SQL("""INSERT INTO {} AS kept
    SELECT DISTINCT ON (topic, key) * FROM batch ORDER BY topic, key, "timestamp" DESC, "offset" DESC
    ON CONFLICT (topic, key) DO UPDATE SET value = excluded.value, "partition" = excluded."partition",
        "offset" = excluded."offset", "timestamp" = excluded."timestamp"
    WHERE (kept."timestamp", kept."offset") < (excluded."timestamp", excluded."offset")""")

# A recreated topic has another id, and so positions of its own.
POSITIONS = SQL("""CREATE TABLE IF NOT EXISTS {} (topic text, topic_id text, "partition" int, position bigint NOT NULL,
    lineage bigint NOT NULL, PRIMARY KEY (topic, topic_id, "partition"))""")
# Two members lock the rows in one order, and each sees what the other has written.
LOCK = SQL("""INSERT INTO {} AS kept SELECT * FROM unnest(%s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[])
    ORDER BY 1, 2, 3 ON CONFLICT (topic, topic_id, "partition") DO UPDATE SET position = kept.position
    RETURNING topic, "partition", position, lineage""")
# A task that Spark has repeated has written its rows twice.
APPEND = SQL("""INSERT INTO {} ({columns}) SELECT DISTINCT ON (topic, "partition", "offset") {columns} FROM {stage}
    JOIN unnest(%s::text[], %s::int[], %s::bigint[]) AS lacking(topic, "partition", first) USING (topic, "partition")
    WHERE "offset" >= first ORDER BY topic, "partition", "offset"
""")
MOVE = SQL("""UPDATE {} AS kept SET position = moved.position, lineage = moved.lineage
    FROM unnest(%s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[])
        AS moved(topic, topic_id, "partition", position, lineage)
    WHERE (kept.topic, kept.topic_id, kept."partition") = (moved.topic, moved.topic_id, moved."partition")""")
PAUSE_LIMIT = "30s"
"""How long a member that pauses in the transaction keeps the positions locked for the others."""
STAGE = SQL("CREATE UNLOGGED TABLE {} AS SELECT {columns} FROM {} WITH NO DATA")
STAGES = """SELECT stage.oid::bigint, nspname, stage.relname FROM pg_class AS stage
    JOIN pg_namespace AS space ON space.oid = stage.relnamespace
    WHERE stage.relname ~ ('^kafka_stage_' || %s || '_[0-9a-f]{32}$')"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the job. Exit codes: 0 success or stopped by a signal; 1 the query failed; 2 invalid arguments."""
    parser = job_parser("group_to_postgres", __doc__)
    parser.add_argument(
        "--postgres", required=True, metavar="CONNINFO", help="libpq connection string without the password"
    )
    parser.add_argument("--table", required=True, help="table, with its schema if needed: lake.flights")
    parser.add_argument("--append", action="store_true", help="a row for every record, not for the latest of each key")
    add_rewind(parser)
    return run(parser.parse_args(arguments), start)


def start(spark: SparkSession, args: argparse.Namespace) -> list[StreamingQuery]:
    """Creates the table and starts the query."""
    database = make_conninfo(args.postgres, password=os.environ.get("PGPASSWORD"))
    table = named(args.table)
    with psycopg.connect(database) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [args.table])  # members may start at once
        connection.execute((ROWS if args.append else TABLE).format(table))
        if args.append:
            connection.execute(POSITIONS.format(named(f"{args.table}_positions")))

    def write(batch: DataFrame, number: int) -> None:
        if args.append:
            append(batch, ranges(spark, args.checkpoint, number), database, args.table, args.rewind)
        else:
            batch.foreachPartition(lambda rows: upsert(rows, database, table))

    # Text with a time zone: a Python timestamp would be in local time.
    zoned = F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss.SSSXXX")
    records = shape(source(spark, args), None).withColumn("timestamp", zoned)
    return [begin(records.writeStream.foreachBatch(write), args)]


def upsert(rows: Iterable[Sequence[object]], database: str, table: Identifier) -> None:
    """Writes the rows of one task in one transaction, on an executor."""
    with psycopg.connect(database) as connection:
        connection.execute(BATCH.format(table))
        copy(rows, connection, Identifier("batch"))
        connection.execute(UPSERT.format(table))


def copy(rows: Iterable[Sequence[object]], connection: psycopg.Connection, table: Identifier) -> None:
    """Copies the rows of one task to a table."""
    with connection.cursor() as cursor, cursor.copy(COPY.format(table, columns=COLUMNS)) as written:
        for row in rows:
            written.write_row(row)


def append(batch: DataFrame, reads: Sequence[OffsetRange], database: str, table: str, rewind: str) -> None:
    """Writes a batch: its tasks copy their rows to a stage, from which one transaction takes what the table lacks."""

    def copy_task(rows: Iterable[Sequence[object]]) -> None:
        with psycopg.connect(database) as connection:
            copy(rows, connection, stage)

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SQL("SET idle_in_transaction_session_timeout = {}").format(PAUSE_LIMIT))
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with staging(connection, table) as stage:
            batch.foreachPartition(copy_task)
            with connection.transaction():
                take(connection, stage, table, reads, rewind)


@contextmanager
def staging(connection: psycopg.Connection, table: str) -> Iterator[Identifier]:
    """A new stage. Its lock lasts as long as the connection, so every stage without a lock was abandoned."""
    (target,) = connection.execute("SELECT %s::regclass::oid::bigint", [named(table).as_string()]).fetchone() or (0,)
    stage = Identifier(*table.split(".")[:-1], f"kafka_stage_{target}_{uuid.uuid4().hex}")
    with connection.transaction():
        connection.execute(STAGE.format(stage, named(table), columns=COLUMNS))
        connection.execute("SELECT pg_advisory_lock(%s::regclass::oid::bigint)", [stage.as_string()])
    try:
        yield stage
    finally:
        with suppress(psycopg.OperationalError):
            connection.execute("SELECT pg_advisory_unlock_all()")
            drop_abandoned(connection, target)


def drop_abandoned(connection: psycopg.Connection, target: int) -> None:
    """Drops the stages of batches that have ended or were killed."""
    connection.execute("SET lock_timeout = '1s'")  # a task that Spark has given up may still hold its stage
    for oid, schema, name in connection.execute(STAGES, [target]).fetchall():
        locked = connection.execute("SELECT pg_try_advisory_lock(%s)", [oid]).fetchone()
        if locked == (True,):
            with suppress(psycopg.errors.LockNotAvailable):
                connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(schema, name)))
            connection.execute("SELECT pg_advisory_unlock(%s)", [oid])


def take(
    connection: psycopg.Connection, stage: Identifier, table: str, reads: Sequence[OffsetRange], rewind: str
) -> None:
    """Appends the rows of the batch that the table lacks, and moves its positions past the batch."""
    positions = named(f"{table}_positions")
    keys = [[each.topic for each in reads], [each.topic_id for each in reads], [each.partition for each in reads]]
    begins = [[each.start for each in reads], [each.lineage for each in reads]]
    kept = {
        (topic, partition): (position, lineage)
        for topic, partition, position, lineage in connection.execute(LOCK.format(positions), [*keys, *begins])
    }
    firsts = [first_offset(each, *kept[each.tp], rewind) for each in reads]
    connection.execute(APPEND.format(named(table), columns=COLUMNS, stage=stage), [keys[0], keys[2], firsts])
    ends = [max(first, each.end) for first, each in zip(firsts, reads, strict=True)]
    lineages = [max(kept[each.tp][1], each.lineage) for each in reads]
    connection.execute(MOVE.format(positions), [*keys, ends, lineages])


def named(table: str) -> Identifier:
    """A table by its name, with its schema if needed."""
    return Identifier(*table.split("."))


if __name__ == "__main__":
    sys.exit(main())
