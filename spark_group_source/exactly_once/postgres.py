"""A table of PostgreSQL: one transaction inserts the records of a batch that the table lacks, and moves its positions.

The driver and the executors need psycopg 3: ``pip install "psycopg[binary]"``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

try:
    import psycopg
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'{error}. PostgresSink needs psycopg 3 on the driver and on each executor: pip install "psycopg[binary]"',
        name=error.name,
    ) from None

from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composed, Identifier
from pyspark.sql import functions as F  # noqa: N812 -- its customary name

from spark_group_source.exactly_once.positions import Rewind, check_rewind, lacking
from spark_group_source.exactly_once.record_columns import check_record_columns
from spark_group_source.offsets import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD = ("topic", "partition", "offset")
"""The columns that identify a record."""

TYPES = {
    "string": "text",
    "binary": "bytea",
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "int",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
"""The types of the table's columns by Spark's types, which are written as in DDL."""

POSITIONS = SQL("""CREATE TABLE IF NOT EXISTS {} (topic text, topic_id text, "partition" int, position bigint NOT NULL,
    lineage bigint NOT NULL, PRIMARY KEY (topic, topic_id, "partition"))""")
# The topics got their ids after the positions were written, with an upgrade of the brokers.
ADD_IDS = SQL("""UPDATE {positions} AS kept SET topic_id = now.topic_id
    FROM unnest(%s::text[], %s::text[], %s::int[]) AS now(topic, topic_id, "partition")
    WHERE kept.topic_id = '' AND now.topic_id <> ''
    AND (kept.topic, kept."partition") = (now.topic, now."partition") AND NOT EXISTS (SELECT FROM {positions} AS other
        WHERE other.topic_id <> '' AND (other.topic, other."partition") = (now.topic, now."partition"))""")
# A batch without ids, from before that, which a query repeats after it.
LOCK_WITH_IDS = SQL("""SELECT topic, kept.topic_id, "partition", position, lineage FROM {} AS kept
    JOIN unnest(%s::text[], %s::text[], %s::int[]) AS batch(topic, topic_id, "partition") USING (topic, "partition")
    WHERE batch.topic_id = '' AND kept.topic_id <> '' ORDER BY topic, kept.topic_id, "partition" FOR UPDATE OF kept""")
# All members lock the rows in the same order, and each sees what another member has written.
LOCK = SQL("""INSERT INTO {} AS kept SELECT * FROM unnest(%s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[])
    ORDER BY 1, 2, 3 ON CONFLICT (topic, topic_id, "partition") DO UPDATE SET position = kept.position
    RETURNING topic, topic_id, "partition", position, lineage""")
STAGE = SQL("CREATE UNLOGGED TABLE {} AS SELECT {columns} FROM {} WITH NO DATA")
COPY = SQL("COPY {} ({columns}) FROM STDIN")
# The stage has the rows of a task twice, if Spark has repeated the task.
APPEND = SQL("""INSERT INTO {} ({columns}) SELECT DISTINCT ON (topic, "partition", "offset") {staged} FROM {} AS stage
    JOIN unnest(%s::text[], %s::int[], %s::bigint[]) AS lacking(topic, "partition", first) USING (topic, "partition")
    WHERE stage."offset" >= lacking.first ORDER BY topic, "partition", "offset"
""")
MOVE = SQL("""UPDATE {} AS kept SET position = moved.position, lineage = moved.lineage
    FROM unnest(%s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[])
        AS moved(topic, topic_id, "partition", position, lineage)
    WHERE (kept.topic, kept.topic_id, kept."partition") = (moved.topic, moved.topic_id, moved."partition")""")
POSITIONS_SUFFIX = "_positions"
MAX_NAME_BYTES = 63
"""PostgreSQL cuts a longer name off, so the table of the positions could be the table itself."""

PAUSE_LIMIT = "30s"
"""How long a member that pauses within the transaction may keep the positions locked."""
STAGES = """SELECT stage.oid::bigint, nspname, stage.relname FROM pg_class AS stage
    JOIN pg_namespace AS space ON space.oid = stage.relnamespace
    WHERE stage.relname ~ ('^kafka_stage_' || %s || '_[0-9a-f]{32}$')"""


class PostgresSink:
    """A table in which each record of Kafka is one row.

    The rows have the columns ``topic``, ``partition`` and ``offset`` as the source returns them, and any others. There
    is at most one row for each record. The positions are in the table ``TABLE_positions``, and each batch has an
    unlogged table ``kafka_stage_...`` while it is written. The role must be allowed to create tables, and a pooler must
    keep sessions.

    Args:
        conninfo: a connection string or URI of libpq; driver and executors connect with it.
        table: its name, with its schema if needed: ``lake.orders``. Upper case is kept.
        password: the password, if ``conninfo`` has none. Without a password, libpq looks for one.
        rewind: what happens to records that the table has after the group was moved back.

    Raises:
        ValueError: the name of the table is too long, or ``rewind`` is neither ``skip`` nor ``write``.
    """

    def __init__(self, conninfo: str, table: str, *, password: str | None = None, rewind: Rewind = "skip") -> None:
        check_rewind(rewind)
        _check_length(table)
        self._conninfo = make_conninfo(conninfo, password=password)
        self._name = table
        self._table = named(table)
        self._positions = named(f"{table}{POSITIONS_SUFFIX}")
        self._rewind = rewind

    def create(self, rows: DataFrame) -> None:
        """Creates the table with the columns of ``rows``, and the table of its positions, if they do not exist.

        Raises:
            ValueError: ``rows`` lacks a column that identifies records, or has a column of a type for which PostgreSQL
                has several or none: create such a table yourself.
            psycopg.Error: the database cannot be reached, or refuses.
        """
        check_record_columns(self._name, rows.columns, RECORD)
        with psycopg.connect(self._conninfo) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self._name])  # members may start at once
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [self._table.as_string()]).fetchone()
            if found != (True,):
                connection.execute(_create_table(self._table, rows.dtypes))
            connection.execute(POSITIONS.format(self._positions))

    def write(self, batch: DataFrame, reads: Sequence[OffsetRange]) -> None:
        """Appends the rows of a batch that the table lacks.

        The tasks copy their rows to a stage, from which one transaction takes them.

        Args:
            batch: the rows; the table has columns of the same names.
            reads: the ranges of the batch, from :func:`foreach_batch` or :func:`batch_ranges`.

        Raises:
            MissingRows: the table lacks records before the batch, although nobody has moved the group past them.
            ValueError: ``batch`` lacks a column that identifies records.
            psycopg.Error: the database cannot be reached, or refuses.
        """
        check_record_columns(self._name, batch.columns, RECORD)
        columns, conninfo = _columns(batch.columns), self._conninfo
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(SQL("SET idle_in_transaction_session_timeout = {}").format(PAUSE_LIMIT))
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with staging(connection, self._name, columns) as stage:
                copy = COPY.format(stage, columns=columns)
                _with_zones(batch).foreachPartition(lambda rows: copy_rows(rows, conninfo, copy))
                with connection.transaction():
                    self._take(connection, stage, batch.columns, reads)

    def _take(
        self, connection: psycopg.Connection, stage: Identifier, names: Sequence[str], reads: Sequence[OffsetRange]
    ) -> None:
        """Appends the rows of the stage that the table lacks, and moves the positions past the batch."""
        table, positions = _beside_parameters(self._table), _beside_parameters(self._positions)
        keys = [[each.topic for each in reads], [each.topic_id for each in reads], [each.partition for each in reads]]
        begins = [[each.start for each in reads], [each.lineage for each in reads]]
        connection.execute(ADD_IDS.format(positions=positions), keys)
        locked = [
            *connection.execute(LOCK.format(positions), [*keys, *begins]),
            *connection.execute(LOCK_WITH_IDS.format(positions), keys),
        ]
        kept = {
            (topic, topic_id, partition): (offset, lineage) for topic, topic_id, partition, offset, lineage in locked
        }
        compared = lacking(reads, kept, self._rewind)
        firsts = [each.first for each in compared]
        append = APPEND.format(
            table,
            _beside_parameters(stage),
            columns=SQL(", ").join([_beside_parameters(Identifier(each)) for each in names]),
            staged=SQL(", ").join([_beside_parameters(Identifier("stage", each)) for each in names]),
        )
        connection.execute(append, [keys[0], keys[2], firsts])
        ends = [each.position.offset for each in compared]
        lineages = [each.position.lineage for each in compared]
        ids = [each.key.topic_id for each in compared]
        connection.execute(MOVE.format(positions), [keys[0], ids, keys[2], ends, lineages])


def copy_rows(rows: Iterable[Sequence[object]], conninfo: str, copy: Composed) -> None:
    """Copies the rows of one task to a table, on an executor."""
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor, cursor.copy(copy) as written:
        for row in rows:
            written.write_row(row)


@contextmanager
def staging(connection: psycopg.Connection, table: str, columns: Composed) -> Iterator[Identifier]:
    """A new stage. Its lock lasts as long as the connection, so a stage without a lock is abandoned."""
    (target,) = connection.execute("SELECT %s::regclass::oid::bigint", [named(table).as_string()]).fetchone() or (0,)
    stage = Identifier(*table.split(".")[:-1], f"kafka_stage_{target}_{uuid.uuid4().hex}")
    with connection.transaction():
        connection.execute(STAGE.format(stage, named(table), columns=columns))
        connection.execute("SELECT pg_advisory_lock(%s::regclass::oid::bigint)", [stage.as_string()])
    try:
        yield stage
    finally:
        with suppress(psycopg.OperationalError):
            connection.execute("SELECT pg_advisory_unlock_all()")
            drop_abandoned(connection, target)


def drop_abandoned(connection: psycopg.Connection, target: int) -> None:
    """Drops the stages of batches that have ended or were killed."""
    connection.execute("SET lock_timeout = '1s'")  # a task that Spark has abandoned may still hold its stage
    for oid, schema, name in connection.execute(STAGES, [target]).fetchall():
        locked = connection.execute("SELECT pg_try_advisory_lock(%s)", [oid]).fetchone()
        if locked == (True,):
            # A member of another role drops the stages of that role.
            with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
                connection.execute(SQL("DROP TABLE IF EXISTS {}").format(Identifier(schema, name)))
            connection.execute("SELECT pg_advisory_unlock(%s)", [oid])


def named(table: str) -> Identifier:
    """A table by its name, with its schema if needed."""
    return Identifier(*table.split("."))


def _check_length(table: str) -> None:
    name = table.rsplit(".", maxsplit=1)[-1]
    longest = MAX_NAME_BYTES - len(POSITIONS_SUFFIX)
    if len(name.encode()) > longest:
        raise ValueError(
            f"the table {table} has a name of {len(name.encode())} bytes; it must have at most {longest}, because the"
            f" name of the table of its positions ends in {POSITIONS_SUFFIX}, and PostgreSQL cuts names off after"
            f" {MAX_NAME_BYTES} bytes"
        )


def _beside_parameters(name: Identifier) -> SQL:
    """A name in a statement with parameters, in which psycopg reads ``%`` as the beginning of a placeholder."""
    return SQL(name.as_string().replace("%", "%%"))


def _columns(names: Sequence[str]) -> Composed:
    return SQL(", ").join([Identifier(each) for each in names])


def _with_zones(batch: DataFrame) -> DataFrame:
    """The batch with its times as texts with a time zone, because a Python timestamp would be in local time."""
    for name, kind in batch.dtypes:
        if kind == "timestamp":
            batch = batch.withColumn(name, zoned(F.col(f"`{name.replace('`', '``')}`")))
    return batch


def zoned(time: Column) -> Column:
    """A time as a text that PostgreSQL reads as the same moment.

    Before standard time, offsets from UTC had seconds: +00:09:21 in Paris. PostgreSQL rejects the plus sign that
    precedes years after 9999, as producers write them that take microseconds for milliseconds.
    """
    return F.ltrim(F.date_format(time, "yyyy-MM-dd HH:mm:ss.SSSSSSXXXXX"), F.lit("+"))


def _create_table(table: Identifier, dtypes: Sequence[tuple[str, str]]) -> Composed:
    columns = [SQL("{} {}").format(Identifier(name), SQL(_type_of(name, kind))) for name, kind in dtypes]
    return SQL("CREATE TABLE {} ({})").format(table, SQL(", ").join(columns))


def _type_of(column: str, kind: str) -> str:
    """The type of PostgreSQL for a column with a type of Spark."""
    if kind.startswith("decimal("):
        return f"numeric{kind.removeprefix('decimal')}"
    if kind in TYPES:
        return TYPES[kind]
    raise ValueError(
        f"column {column} has the type {kind}, for which PostgreSQL has several or none; create the table before, or"
        " convert the column, for example with to_json()"
    )
