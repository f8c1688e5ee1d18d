"""The jobs that append to Delta and Iceberg tables, killed twice before Spark commits a batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyspark
import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import SHORT_SESSION, SMALL, Job

RECORDS, BATCH = 1_000, int(SMALL[-1])
SPARK = ".".join(pyspark.__version__.split(".")[:2])

Place = tuple[int, int]


@dataclass(frozen=True)
class TableFormat:
    """A table format, and a job that writes it.

    Attributes:
        sparks: the versions of Spark for which Maven Central has ``package``, where SPARK stands for the version.
        arguments: of the job; here and in ``table``, WORK stands for the directory of the test.
        table: the name of the table in SQL.
        commits: the files of which each commit adds one.
        batch_of: returns the number of the batch in a file of ``commits``, or -1.
        conf: further arguments of spark-submit.
    """

    script: str
    sparks: tuple[str, ...]
    package: str
    arguments: tuple[str, ...]
    table: str
    commits: str
    batch_of: Callable[[Path], int]
    conf: tuple[str, ...] = ()


@cache
def delta_batch(commit: Path) -> int:
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    return max((each["txn"]["version"] for each in actions if "txn" in each), default=-1)


@cache
def iceberg_batch(metadata: Path) -> int:
    snapshots = json.loads(metadata.read_text())["snapshots"]
    return max((int(each["summary"]["spark.sql.streaming.epochId"]) for each in snapshots), default=-1)


DELTA = TableFormat(
    script="group_to_delta.py",
    sparks=("4.0", "4.1", "4.2"),
    package="io.delta:delta-spark_SPARK_2.13:4.4.0",
    arguments=("--output", "WORK/table"),
    table="delta.`WORK/table`",
    commits="table/_delta_log/[0-9]*.json",
    batch_of=delta_batch,
    conf=(
        # Without what Spark has itself: 70 MB less to fetch.
        *("--exclude-packages", "org.apache.hadoop:*,org.apache.parquet:*"),
        *("--conf", "spark.databricks.delta.snapshotPartitions=1"),
    ),
)
ICEBERG = TableFormat(
    script="group_to_iceberg.py",
    sparks=("4.0", "4.1"),
    package=f"org.apache.iceberg:iceberg-spark-runtime-SPARK_2.13:{'1.11.0' if SPARK == '4.0' else '1.12.0'}",
    arguments=("--warehouse", "WORK/warehouse", "--table", "lake.db.orders"),
    table="lake.db.orders",
    commits="warehouse/db/orders/metadata/v*.metadata.json",
    batch_of=iceberg_batch,
)


class Table:
    """The table of one test, its job, and the states in which the job is to be killed."""

    def __init__(self, kind: TableFormat, kafka: EmbeddedKafka, work: Path, topic: str, group: str) -> None:
        self._kind = kind
        self._work = work
        self._package = kind.package.replace("SPARK", SPARK)
        own = (*(each.replace("WORK", str(work)) for each in kind.arguments), *SHORT_SESSION)
        self._job = Job(kafka, work, topic, group, kind.script, own, ("--packages", self._package, *kind.conf))

    def kill_before_spark_commits(self) -> None:
        """Kills the job when the table has a batch that Spark has not committed."""
        self._skip_without_package(lambda: self._job.kill_after_write(self._last_batch, *SMALL))

    def read(self) -> list[Place]:
        """Runs the job to the end of its topic; returns partition and offset of each row, sorted."""
        return self._job.run_and_read(self._kind.table.replace("WORK", str(self._work)))

    def _last_batch(self) -> int:
        newest = max(self._work.glob(self._kind.commits), key=modified, default=None)
        return -1 if newest is None else self._kind.batch_of(newest)

    def _skip_without_package(self, run: Callable[[], object]) -> None:
        try:
            run()
        except AssertionError as failed:
            if "unresolved dependency" in str(failed) or "download failed" in str(failed):
                pytest.skip(f"{self._package} cannot be fetched from Maven Central")
            raise


def modified(file: Path) -> int:
    return file.stat().st_mtime_ns


def without_package(kind: TableFormat) -> pytest.MarkDecorator:
    reason = f"{kind.package} exists for Spark {' and '.join(kind.sparks)}, not {SPARK}"
    return pytest.mark.skipif(SPARK not in kind.sparks, reason=reason)


@pytest.fixture(
    params=[
        pytest.param(DELTA, marks=without_package(DELTA), id="delta"),
        pytest.param(ICEBERG, marks=without_package(ICEBERG), id="iceberg"),
    ]
)
def table(request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path: Path, name: str, group: str) -> Table:
    return Table(request.param, kafka, tmp_path, name, group)


@pytest.fixture
def name(topic: Callable[..., str]) -> str:
    return topic(partitions=4)


@pytest.fixture
def records(kafka: EmbeddedKafka, name: str) -> list[Place]:
    """Writes records; returns where they are, sorted."""
    return sorted(kafka.produce(name, [f"value-{number}" for number in range(RECORDS)]))


@pytest.mark.core
def test_a_table_contains_each_record_once_although_its_job_was_killed_twice(
    table: Table, records: list[Place]
) -> None:
    for _ in range(2):
        table.kill_before_spark_commits()
    assert table.read() == records
