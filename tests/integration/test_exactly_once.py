"""Two members write one table while something goes wrong at a step of a write: the table has each record once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pyspark
import pytest
from confluent_kafka import Producer
from psycopg.sql import SQL, Identifier
from pyspark.sql import SparkSession

from spark_group_source.errors import MissingRows
from spark_group_source.exactly_once import OffsetRange
from spark_group_source.exactly_once.positions import Rewind
from spark_group_source.exactly_once.postgres import PostgresSink, _columns, drop_abandoned, staging
from spark_group_source.testing import EmbeddedKafka
from tests.integration import postgres
from tests.integration.job_process import JOBS, environment, family, kill
from tests.integration.query_process import READER, eventually
from tests.integration.standing import partitions_per_member

SCRIPT = Path(__file__).parent / "run_members.py"
SPARK = ".".join(pyspark.__version__.split(".")[:2])
PARTITIONS, BATCHES = 4, 10
PAUSE_S = 15.0
EXCLUDED = "org.apache.hadoop:*,org.apache.parquet:*"  # Spark has them
OPTIONS = {
    "kafka.session.timeout.ms": 6000,
    "kafka.heartbeat.interval.ms": 500,
    "minPartitions": 2 * PARTITIONS,
    "minRecordsPerTask": 1,
}


class Sink(NamedTuple):
    """A job. ``arguments`` and ``table`` name the table of a cell; ``sparks`` are versions that have ``package``."""

    job: str
    arguments: tuple[str, ...]
    table: str
    sparks: tuple[str, ...] = (SPARK,)
    package: str = ""
    steps: tuple[str, ...] = ("begun", "task", "written")


SINKS = {
    "postgres": Sink(
        "group_to_postgres",
        ("--append", "--postgres", "{database}", "--table", "{name}"),
        "{name}",
        steps=("begun", "task", "staged", "locked", "taken", "written"),
    ),
    "delta": Sink(
        "group_to_delta",
        ("--output", "{work}/{name}"),
        "delta.`{work}/{name}`",
        ("4.0", "4.1", "4.2"),
        f"io.delta:delta-spark_{SPARK}_2.13:4.4.0",
    ),
    "iceberg": Sink(
        "group_to_iceberg",
        ("--table", "lake.db.{name}", "--warehouse", "{work}/warehouse"),
        "lake.db.{name}",
        ("4.0", "4.1"),
        f"org.apache.iceberg:iceberg-spark-runtime-{SPARK}_2.13:{'1.11.0' if SPARK == '4.0' else '1.12.0'}",
    ),
}


class Members:
    """The application whose queries are the members; see ``run_members``."""

    def __init__(self, sink: Sink, work: Path, database: str, way: str) -> None:
        self.work, self.sink, self._database, self._way = work, sink, database, way
        self.begin()

    def begin(self) -> None:
        """Starts the application."""
        sink = self.sink
        package = ["--packages", sink.package, "--exclude-packages", EXCLUDED] if sink.package else []
        conf = ["--conf", "spark.databricks.delta.snapshotPartitions=1", "--conf", "spark.sql.shuffle.partitions=1"]
        own = environment()
        own |= {"PYTHONPATH": f"{own['PYTHONPATH']}{os.pathsep}{JOBS}"}
        # Not by spark-submit, which would keep the script's stdin.
        own |= {"PYSPARK_SUBMIT_ARGS": shlex.join(["--master", "local[24,4]", *package, *conf, "pyspark-shell"])}
        with (self.work / "log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self.work), sink.job, self._way],
                env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def ask(self, *command: str) -> Any:
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        log = (self.work / "log").read_text(errors="replace")
        if not answer and ("unresolved dependency" in log or "download failed" in log):
            pytest.skip(f"{self.sink.package} cannot be fetched from Maven Central")
        assert answer, log[-4000:]
        return json.loads(answer)

    def runners(self) -> set[int]:
        """The processes of the members."""
        return {pid for pid, line in family(self._process.pid).items() if READER in line}

    def named(self, text: str, name: str) -> str:
        """The text for the table of a cell."""
        return text.format(name=name, work=self.work, database=self._database)

    def count(self, name: str) -> tuple[int, int]:
        """The rows and the different records of a table."""
        if self.sink.package:
            rows, different = self.ask("count", self.named(self.sink.table, name))
            return rows, different
        with psycopg.connect(self._database) as connection:
            counted = f'SELECT count(*), count(DISTINCT (topic, "partition", "offset")) FROM {name}'
            return connection.execute(counted).fetchone() or (0, 0)

    def kill(self) -> None:
        """Kills all processes at once."""
        with self._process:
            kill(self._process)


class Cell:
    """A topic and a table, a group of two members, and the step at which the first member is held."""

    def __init__(self, members: Members, kafka: EmbeddedKafka, trouble: str, step: str, records: int) -> None:
        self.members, self.kafka, self.trouble, self.step, self._records = members, kafka, trouble, step, records
        self.name = f"{trouble}_{step}_{members.work.name}".lower().replace("-", "_")
        self.topic = kafka.create_topic(self.name, PARTITIONS)
        self.locks = step in ("locked", "taken")  # the table's positions, while the first member is held
        self.group = f"group-of-{self.topic}"
        self.runner = 0

    def start(self, member: int, checkpoint: str = "") -> None:
        """Starts a member; ``runner`` becomes the process of the first one."""
        former = self.members.runners()
        more = {"kafka.max.poll.interval.ms": 8000} if self.trouble == "rebalance" else {}
        options = [part for name, value in (OPTIONS | more).items() for part in ("--option", f"{name}={value}")]
        own = [self.members.named(each, self.name) for each in self.members.sink.arguments]
        where = ["--checkpoint", str(self.members.work / f"{self.name}.{member}{checkpoint}")]
        where += ["--bootstrap-servers", self.kafka.bootstrap_servers, "--topic", self.topic, "--group", self.group]
        limit = ["--max-offsets-per-trigger", str(self._records // BATCHES)]
        rewind = ["--rewind", "write"] if self.trouble == "again" else []
        self.members.ask("start", *where, *own, *limit, *options, *rewind)
        eventually(lambda: self.members.runners() - former, what="the member's process")
        if member == 0:
            (self.runner,) = self.members.runners() - former

    def produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 20})
        for number in range(self._records):
            producer.produce(self.topic, f"value-{number}", f"key-{number}", partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush()
        producer.flush()

    def file(self, kind: str, member: int, step: str = "") -> Path:
        return self.members.work / "-".join(filter(None, [kind, f"{self.name}.{member}", step]))

    def hold(self, member: int, batch: int) -> None:
        """Holds a member at the step, from this batch on, until :meth:`release`."""
        self.file("hold", member, self.step).write_text(str(batch))

    def release(self, member: int) -> None:
        self.file("hold", member, self.step).unlink(missing_ok=True)

    def await_held(self, member: int) -> None:
        at = self.file("at", member, self.step)
        at.unlink(missing_ok=True)
        eventually(at.exists, what=f"{self.name}: {self.step}")

    def writes(self, member: int) -> int:
        """How many writes of a member have ended."""
        wrote = self.file("wrote", member)
        return len(wrote.read_text().splitlines()) if wrote.exists() else 0

    def await_writes(self, member: int, least: int) -> None:
        eventually(lambda: self.writes(member) >= least, what=f"{self.name}: write {least} of member {member}")

    def await_partitions(self, *expected: int) -> None:
        eventually(lambda: partitions_per_member(self.kafka, self.group) == list(expected), what=f"{expected}")

    def await_read(self, partitions: int = PARTITIONS) -> None:
        """Waits until the group has committed the end of so many partitions."""
        lag = self.kafka.lag
        eventually(lambda: [*lag(self.group, self.topic).values()].count(0) >= partitions, what=self.name)

    def stop(self) -> None:
        for member in (0, 1):
            assert self.members.ask("stop", f"{self.name}.{member}") == ""


def restart(cells: list[Cell], checkpoint: str = "") -> None:
    """Kills everything and starts it again."""
    members = cells[0].members
    members.kill()
    members.begin()
    for cell in cells:
        cell.release(0)
        for member in (0, 1):
            cell.start(member, checkpoint)


def pause(cells: list[Cell]) -> None:
    """Pauses the first member beyond its session; the second takes over, and then the first writes what it had read."""
    began = time.monotonic()
    for cell in cells:
        os.kill(cell.runner, signal.SIGSTOP)
    for cell in cells:
        cell.await_partitions(PARTITIONS)
        if not cell.locks:
            cell.await_read()
    eventually(lambda: time.monotonic() - began >= PAUSE_S)
    let_go(cells)


def let_go(cells: list[Cell], *others: int) -> None:
    """The first member continues, together with the ``others``; waits for the end of its write."""
    former = {cell.name: cell.writes(0) for cell in cells}
    for cell in cells:
        os.kill(cell.runner, signal.SIGCONT)
        for member in (0, *others):
            cell.release(member)
    for cell in cells:
        cell.await_writes(0, former[cell.name] + 1)


def write_together(cells: list[Cell]) -> None:
    """As :func:`pause`, but both members are at the step with records of the same partitions."""
    for cell in cells:
        os.kill(cell.runner, signal.SIGSTOP)
    for cell in cells:
        cell.await_partitions(PARTITIONS)
        cell.hold(1, 3)
        cell.await_writes(1, 3)
        cell.await_held(1)
    let_go(cells, 1)


def rebalance(cells: list[Cell]) -> None:
    """A member joins; its partitions' former owner is still in the batch when the revocation times out."""
    for cell in cells:
        cell.start(1)
    for cell in cells:
        cell.await_partitions(2, 2)
        if not cell.locks:
            cell.await_read(2)
    let_go(cells)


def move_back(cells: list[Cell]) -> None:
    """An operator moves the group back to the beginning when all is read."""
    for cell in cells:
        cell.await_read()
        cell.stop()
        eventually(lambda: cell.kafka.group_state(cell.group) == "Empty")  # noqa: B023 -- it waits in the loop
        where = ("--group", cell.group, "--topic", cell.topic)
        cell.kafka.consumer_groups(*where, "--reset-offsets", "--to-earliest", "--execute")
        for member in (0, 1):
            cell.start(member)


TROUBLES: dict[str, Callable[[list[Cell]], None]] = {
    "kill": restart,
    "lost": lambda cells: restart(cells, "+new"),
    "pause": pause,
    "together": write_together,
    "rebalance": rebalance,
    "task": lambda cells: None,
    "rewind": move_back,
    "again": move_back,
}
STEPS = {"together": ("task", "staged"), "task": ("task",), "rewind": ("begun",), "again": ("begun",)}
"""Steps of troubles that do not make sense at every step."""
LONG_BATCH = pytest.param("rebalance", marks=pytest.mark.trap)


def play(
    members: Members, kafka: EmbeddedKafka, trouble: str, steps: tuple[str, ...], records: int
) -> dict[str, tuple[int, int]]:
    """Plays the trouble at several steps at once; returns the rows and the different records in the table of each."""
    cells = [Cell(members, kafka, trouble, step, records) for step in steps]
    started = (0,) if trouble == "rebalance" else (0, 1)
    held = () if trouble in ("task", "rewind", "again") else (0, 1) if trouble == "together" else (0,)
    for cell in cells:
        for member in started:
            cell.start(member)
    for cell in cells:
        cell.await_partitions(*(PARTITIONS // len(started) for _ in started))
        if trouble == "task":
            cell.file("kill", 0).touch()
        for member in held:
            cell.hold(member, 2)
        cell.produce()
    for cell in cells:
        for member in held:
            cell.await_held(member)
    TROUBLES[trouble](cells)
    for cell in cells:
        cell.await_read()
        cell.stop()
        assert not cell.file("kill", 0).exists()
    return {cell.step: members.count(cell.name) for cell in cells}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres.running() as running:
        yield running


class Batch(NamedTuple):
    """A batch of topic ``t`` without Spark: one task for each range, which runs ``times`` times."""

    reads: list[OffsetRange]
    times: int = 1
    columns: tuple[str, ...] = ("key", "value", "topic", "partition", "offset", "timestamp")
    dtypes: tuple[tuple[str, str], ...] = (
        *(("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint")),
        ("timestamp", "string"),
    )

    def foreachPartition(self, task: Callable[[Any], None]) -> None:  # noqa: N802 -- Spark's name
        for each in self.reads * self.times:
            task((b"key", b"value", "t", each.partition, at, "2026-01-01") for at in range(each.start, each.end))

    def append(self, database: str, table: str, rewind: Rewind = "skip") -> None:
        PostgresSink(database, table, rewind=rewind).write(self, self.reads)  # type: ignore[arg-type]


@pytest.fixture
def table(database: str, unique: Callable[[str], str]) -> str:
    """A table that is empty."""
    name = unique("rows").replace("-", "_")
    PostgresSink(database, name).create(Batch([]))  # type: ignore[arg-type]
    return name


def test_a_table_takes_what_it_lacks(database: str, table: str) -> None:
    def write(start: int, end: int, lineage: int = 0, topic_id: str = "", rewind: Rewind = "skip") -> dict[int, int]:
        """Writes a range of partition 0; returns how often the table has each number of offsets."""
        Batch([OffsetRange("t", 0, start, end, topic_id, lineage=lineage)], times=2).append(database, table, rewind)
        with psycopg.connect(database) as connection:
            counted = connection.execute(f'SELECT count(*) FROM {table} GROUP BY "offset"').fetchall()
        return dict(Counter(times for (times,) in counted))

    assert write(100, 110) == {1: 10}
    assert write(105, 115) == {1: 15}, "a paused member, or another one"
    assert write(100, 110) == {1: 15}, "a repeated batch"
    with pytest.raises(MissingRows, match="starts at 116 in t-0, and the table has the records below 115"):
        write(116, 120)
    assert write(116, 120, lineage=1) == {1: 19}, "the group was moved forward"
    assert write(110, 121) == {1: 20}, "a batch from before that"
    assert write(100, 110, lineage=2) == {1: 20}, "the group was moved back"
    assert write(100, 110, lineage=3, rewind="write") == {1: 10, 2: 10}
    assert write(100, 111, lineage=3, rewind="write") == {1: 9, 2: 11}
    assert write(100, 111, lineage=3, topic_id="id") == {1: 9, 2: 11}, "the same topic, from brokers that know its id"
    assert write(105, 111, lineage=3) == {1: 9, 2: 11}, "a batch from before the topic had an id"
    assert write(100, 110, lineage=3, topic_id="new") == {1: 9, 2: 1, 3: 10}, "a recreated topic"
    with psycopg.connect(database) as connection:
        kept = connection.execute(f"SELECT topic_id, position FROM {table}_positions WHERE topic_id <> ''").fetchall()
    assert sorted(kept) == [("id", 111), ("new", 110)]


def test_a_table_whose_name_leaves_no_room_for_that_of_its_positions_is_an_error() -> None:
    PostgresSink("", f"lake.{'x' * 53}")
    with pytest.raises(ValueError, match="has a name of 54 bytes; it must have at most 53"):
        PostgresSink("", f"lake.{'x' * 54}")


@pytest.mark.parametrize("name", ["first", "stage", "lacking", "kept", "a%b", "a%s", "a{}b", 'a"b', "select", "Upper"])
def test_a_table_and_its_columns_may_have_any_name(database: str, unique: Callable[[str], str], name: str) -> None:
    class Named(Batch):
        def foreachPartition(self, task: Callable[[Any], None]) -> None:  # noqa: N802 -- Spark's name
            task((f"v{at}", "t", each.partition, at) for each in self.reads for at in range(each.start, each.end))

    dtypes = ((name, "string"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"))
    table = unique(name)
    for reads in ([OffsetRange("t", 0, 0, 5)], [OffsetRange("t", 0, 3, 7)]):
        batch: Any = Named(reads, columns=tuple(column for column, _ in dtypes), dtypes=dtypes)
        sink = PostgresSink(database, table)
        sink.create(batch)
        sink.write(batch, reads)
    with psycopg.connect(database) as connection:
        written = connection.execute(SQL('SELECT {}, "offset" FROM {}').format(Identifier(name), Identifier(table)))
        assert sorted(written.fetchall()) == [(f"v{at}", at) for at in range(7)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "America/New_York"])
def test_a_time_arrives_as_the_same_moment(
    database: str, spark: SparkSession, unique: Callable[[str], str], zone: str
) -> None:
    moments = [-2_524_522_161, -1, 0, 1_761_438_600, 1_764_365_640_000]  # 1890 to 57880
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.createDataFrame([(at,) for at in moments], "`offset` long").selectExpr(
            "'t' AS topic", "0 AS partition", "offset", "timestamp_seconds(offset) AS `a``b`"
        )
        table = unique("times")
        sink = PostgresSink(database, table)
        sink.create(rows)
        sink.write(rows, [OffsetRange("t", 0, min(moments), max(moments) + 1)])
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(former))
    with psycopg.connect(database) as connection:
        written = SQL('SELECT "offset" FROM {} WHERE extract(epoch FROM "a`b") = "offset" ORDER BY 1')
        found = connection.execute(written.format(Identifier(table))).fetchall()
    assert [at for (at,) in found] == moments


def test_members_that_write_the_same_partitions_at_once_wait_for_each_other(database: str, table: str) -> None:
    def member(step: int) -> None:
        for start in range(0, 200, step):
            Batch([OffsetRange("t", each, start, start + step) for each in range(PARTITIONS)]).append(database, table)

    with ThreadPoolExecutor() as threads:
        list(threads.map(member, (10, 20, 40, 50)))
    with psycopg.connect(database) as connection:
        counted = connection.execute(f'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM {table}')
        assert counted.fetchone() == (200 * PARTITIONS, 200 * PARTITIONS)


def test_a_stage_lasts_as_long_as_its_batch(database: str, table: str) -> None:
    stages = "SELECT count(*) FROM pg_class WHERE relname LIKE 'kafka_stage_%'"
    with psycopg.connect(database, autocommit=True) as other, contextlib.ExitStack() as batch:
        (target,) = other.execute("SELECT %s::regclass::oid::bigint", [table]).fetchone() or (0,)
        killed = psycopg.connect(database, autocommit=True)
        batch.enter_context(staging(killed, table, _columns(Batch([]).columns)))
        drop_abandoned(other, target)
        assert other.execute(stages).fetchone() == (1,)
        killed.close()

        def dropped() -> bool:  # when PostgreSQL has learned of the end
            drop_abandoned(other, target)
            return other.execute(stages).fetchone() == (0,)

        eventually(dropped)


def test_an_abandoned_stage_of_another_role_does_not_stop_a_member(database: str, table: str) -> None:
    first, second = f"{table}_first", f"{table}_second"
    with psycopg.connect(database) as connection:
        for role in (first, second):
            connection.execute(f"CREATE ROLE {role} LOGIN IN ROLE pg_read_all_data, pg_write_all_data")
            connection.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    with contextlib.ExitStack() as batch:
        killed = psycopg.connect(f"{database} user={first}", autocommit=True)
        batch.enter_context(staging(killed, table, _columns(Batch([]).columns)))
        killed.close()
        for end in (5, 10):
            Batch([OffsetRange("t", 0, 0, end)]).append(f"{database} user={second}", table)
    with psycopg.connect(database) as connection:
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (10,)
        stages = "SELECT relowner::regrole::text FROM pg_class WHERE relname LIKE 'kafka_stage_%'"
        assert set(connection.execute(stages).fetchall()) <= {(first,)}


@pytest.fixture
def members(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Iterator[Members]:
    sink, way = request.param
    if SPARK not in SINKS[sink].sparks:
        pytest.skip(f"{SINKS[sink].package} exists for Spark {' and '.join(SINKS[sink].sparks)}, not {SPARK}")
    running = Members(SINKS[sink], tmp_path, database, way)
    yield running
    running.kill()


@pytest.mark.parametrize(
    "members",
    # With the oldest Spark, the packages for it: the database's writes have nothing of Spark's version.
    [pytest.param((sink, "exact"), marks=[pytest.mark.core] * bool(SINKS[sink].package)) for sink in SINKS],
    indirect=True,
    ids=SINKS,
)
def test_a_member_that_was_paused_in_a_write_repeats_nothing(
    members: Members, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PAUSE_S", 0.0)  # until the takeover
    monkeypatch.setitem(globals(), "BATCHES", 5)
    assert play(members, kafka, "pause", ("task",), 4_000) == {"task": (4_000, 4_000)}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [LONG_BATCH, *sorted({*TROUBLES} - {"rebalance"})])
@pytest.mark.parametrize("members", [(sink, "exact") for sink in SINKS], indirect=True, ids=SINKS)
def test_a_table_has_each_record_once(members: Members, kafka: EmbeddedKafka, trouble: str) -> None:
    records, steps = 100_000, members.sink.steps
    counted = play(members, kafka, trouble, tuple(each for each in STEPS.get(trouble, steps) if each in steps), records)
    times = 2 if trouble == "again" else 1
    assert counted == dict.fromkeys(counted, (times * records, records))


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["kill", "lost", "pause", LONG_BATCH])
@pytest.mark.parametrize("members", [("postgres", "plain")], indirect=True, ids=["postgres"])
def test_a_plain_append_repeats_rows(members: Members, kafka: EmbeddedKafka, trouble: str) -> None:
    rows, different = play(members, kafka, trouble, ("written",), 4_000)["written"]
    assert rows > different == 4_000
