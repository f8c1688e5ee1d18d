"""The jobs, killed when the sink has a batch that Spark has not committed, and started again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest
from group_to_postgres import TABLE, upsert
from psycopg.sql import SQL, Identifier
from pyspark.sql import SparkSession

from spark_group_source.testing import EmbeddedKafka
from tests.integration import postgres
from tests.integration.job_process import SHORT_SESSION, SMALL, Job

RECORDS, KEYS = 1_000, 200

Place = tuple[int, int]
MakeJob = Callable[..., Job]


@pytest.fixture
def job(kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], group: str) -> MakeJob:
    """Makes a job over a topic of its own, by its script and arguments; its output is ``tmp_path / "output"``."""

    def make(script: str, *own: str, spark: tuple[str, ...] = ()) -> Job:
        return Job(kafka, tmp_path, topic(partitions=4), group, script, own, spark)

    return make


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


def fill(kafka: EmbeddedKafka, topic: str) -> list[Place]:
    """Writes the records; returns where they are, sorted."""
    rows = [(f"key-{number % KEYS}", json.dumps({"id": number})) for number in range(RECORDS)]
    return sorted(kafka.produce(topic, rows))


def places(files: Path) -> list[Place]:
    """Where the rows of Parquet files came from, sorted."""
    table = ds.dataset(files, format="parquet").to_table(columns=["partition", "offset"])
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def last(names: Iterable[str]) -> int:
    """The highest number among names like ``batch=N`` or ``N``."""
    return max((int(each.rpartition("=")[2]) for each in names), default=-1)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_parquet_files_of_an_uncommitted_batch_are_written_again(
    kafka: EmbeddedKafka, job: MakeJob, output: Path
) -> None:
    copy = job("group_to_parquet.py", "--output", str(output), *SHORT_SESSION)
    everything = fill(kafka, copy.topic)
    batch = copy.kill_after_write(lambda: last(each.parent.name for each in output.glob("run=*/*/_SUCCESS")), *SMALL)
    assert places(next(output.glob(f"run=*/batch={batch}")))
    copy.run_here()
    assert places(output) == everything


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres.running() as running:
        yield running


LATEST = Identifier("public", "written")


@pytest.fixture
def table(database: str) -> str:
    """The database, in which the job's table is empty."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE.format(LATEST))
        connection.execute(SQL("TRUNCATE {}").format(LATEST))
    return database


def record(key: bytes | None, value: bytes | None, offset: int, second: int = 0) -> tuple[object, ...]:
    """A row as the job writes it."""
    return (key, value, "topic", 0, offset, f"2026-01-01 00:00:{second:02}.123Z")


def rows_in(table: str) -> list[tuple[bytes, bytes | None, int]]:
    with psycopg.connect(table) as connection:
        return connection.execute('SELECT key, value, "offset" FROM written ORDER BY key').fetchall()


def test_the_last_record_of_each_key_wins_in_any_order_of_writes(table: str) -> None:
    older = [record(b"one", b"first", 1), record(b"two", b"\x00\xff\\N\t\n", 2), record(b"one", b"second", 3)]
    newer = [record(b"one", b"third", 4), record(b"one", None, 5, second=1)]
    for rows in (older, older, newer, older, newer[:1]):
        upsert(rows, table, LATEST)
    assert rows_in(table) == [(b"one", None, 5), (b"two", b"\x00\xff\\N\t\n", 2)]


def test_a_record_without_a_key_fails_and_its_task_writes_nothing(table: str) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation):
        upsert([record(b"one", b"first", 1), record(None, b"second", 2)], table, LATEST)
    assert rows_in(table) == []


# Notes each change of a row that the job makes.
AUDITED = """
CREATE TABLE audit (key bytea, "partition" int, "offset" bigint, change xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO audit VALUES (new.key, new."partition", new."offset"); RETURN NULL; END$$;
CREATE TABLE latest (key bytea, value bytea, topic text, "partition" int, "offset" bigint, "timestamp" timestamptz,
    PRIMARY KEY (topic, key));
CREATE TRIGGER note AFTER INSERT OR UPDATE ON latest FOR EACH ROW EXECUTE FUNCTION note();
"""


@pytest.mark.slow
def test_postgresql_contains_an_uncommitted_batch_once_and_the_last_row_of_each_key(
    kafka: EmbeddedKafka, job: MakeJob, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(AUDITED)
        table = job("group_to_postgres.py", "--postgres", database, "--table", "latest", *SHORT_SESSION)
        fill(kafka, table.topic)

        def written() -> int:
            # So small a batch is one task, and a task one transaction.
            (batches,) = connection.execute("SELECT count(DISTINCT change) FROM audit").fetchone() or (0,)
            return int(batches) - 1

        table.kill_after_write(written, *SMALL)
        table.run()
        twice = 'SELECT key, "partition", "offset" FROM audit GROUP BY 1, 2, 3 HAVING count(*) > 1'
        assert connection.execute(twice).fetchall() == []
        kept = connection.execute("SELECT key, value FROM latest ORDER BY key").fetchall()
    latest = {f"key-{number % KEYS}".encode(): b'{"id": %d}' % number for number in range(RECORDS)}
    assert kept == sorted(latest.items())


@pytest.mark.slow
def test_each_window_is_counted_once_despite_a_failure(
    kafka: EmbeddedKafka, job: MakeJob, output: Path, tmp_path: Path, spark: SparkSession
) -> None:
    schema = "kind STRING, at TIMESTAMP"
    windows = ("--time", "at", "--window", "10 seconds", "--watermark", "2 minutes", "--by", "kind")
    counts = job(
        "windowed_counts.py", "--output", str(output), "--schema", schema, *windows, *SHORT_SESSION,
        spark=("--conf", "spark.sql.shuffle.partitions=1"),
    )  # fmt: skip
    expected = fill_events(kafka, counts.topic)
    counts.kill_after_write(
        lambda: last(each.name for each in (output / "_spark_metadata").glob("[0-9]*[0-9]")), *SMALL
    )
    counts.run_here()
    rows = spark.read.parquet(str(output)).selectExpr("CAST(start AS LONG)", "kind", "count").collect()
    assert sorted(tuple(row) for row in rows) == expected


def fill_events(kafka: EmbeddedKafka, topic: str) -> list[tuple[int, str, int]]:
    """Writes an event for each second, in turn to each partition, and one that ends all windows.

    Returns:
        Begin of each window in seconds since 1970, kind, and how many events of that kind are in it; sorted.
    """
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    times = [begin + timedelta(seconds=number) for number in range(RECORDS)]
    events = [(f"kind-{number % 3}", at) for number, at in enumerate(times)]
    for partition in range(4):
        mine = [*events[partition::4], ("end", begin + timedelta(days=1))]
        kafka.produce(topic, [json.dumps({"kind": kind, "at": at.isoformat()}) for kind, at in mine], partition)
    counted = Counter((at - timedelta(seconds=at.second % 10), kind) for kind, at in events)
    return sorted((round(start.timestamp()), kind, count) for (start, kind), count in counted.items())
