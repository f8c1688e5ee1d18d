"""The jobs as people run them: spark-submit in a process of its own, on one machine's Spark and on a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ports import HOST, free_ports
from spark_group_source.testing.watchdog import Watchdog

REPOSITORY = Path(__file__).resolve().parents[2]
JOB = REPOSITORY / "jobs" / "group_to_parquet.py"
PATIENCE_S = 120.0


class Job:
    """group_to_parquet over one topic, for one group, into one output."""

    def __init__(self, kafka: EmbeddedKafka, work: Path, topic: str, group: str) -> None:
        self.topic = topic
        self.output = work / "output"
        self._work = work
        self._source = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic, "--group", group]

    def arguments(self, *more: str, checkpoint: str = "checkpoint") -> list[str]:
        places = ["--output", str(self.output), "--checkpoint", str(self._work / checkpoint)]
        return [str(JOB), *self._source, *places, *more]

    def run(self, *more: str, checkpoint: str = "checkpoint", spark: tuple[str, ...] = ()) -> str:
        """Runs it over what is in the topic now; returns what it printed."""
        master = spark or ("--master", "local[2]")
        command = [str(Path(sys.executable).parent / "spark-submit"), *master]
        command += self.arguments("--trigger", "available-now", *more, checkpoint=checkpoint)
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """What is in the output, sorted by partition and offset."""
        if not self.output.exists():
            return []
        found = (
            ds.dataset(self.output, format="parquet")
            .to_table()
            .sort_by([("partition", "ascending"), ("offset", "ascending")])
        )
        return list(zip(*(found.column(each).to_pylist() for each in columns), strict=True))


def environment() -> dict[str, str]:
    """The environment of a job: this Python, this tree, a quiet console, no other Spark."""
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return {
        **kept,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "SPARK_CONF_DIR": str(REPOSITORY / "conf"),
        "SPARK_LOCAL_IP": HOST,
    }


@pytest.fixture
def job(kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], group: str) -> Job:
    return Job(kafka, tmp_path, topic(partitions=4), group)


@pytest.fixture
def written(kafka: EmbeddedKafka, job: Job) -> list[tuple[int, int, bytes, bytes]]:
    """What is in the job's topic: (partition, offset, key, value), sorted."""
    rows = [(f"key-{number}", f'{{"id": {number}}}') for number in range(200)]
    places = kafka.produce(job.topic, rows)
    return sorted((*place, key.encode(), value.encode()) for place, (key, value) in zip(places, rows, strict=True))


@pytest.mark.core
def test_without_a_schema_records_arrive_as_they_are(job: Job, written: list[tuple[int, int, bytes, bytes]]) -> None:
    assert "read 200 rows" in job.run()
    assert job.rows("partition", "offset", "key", "value") == written
    assert set(job.rows("topic")) == {(job.topic,)}


def test_with_a_schema_json_becomes_columns_and_what_is_no_json_is_kept(kafka: EmbeddedKafka, job: Job) -> None:
    kafka.produce(job.topic, ['{"id": 1, "name": "one"}', "no json", '{"id": "x"}', ("tombstone", None)], partition=0)
    job.run("--schema", "id INT, name STRING")
    assert job.rows("offset", "id", "name", "_corrupt_record") == [
        (0, 1, "one", None),
        (1, None, None, "no json"),
        (2, None, None, '{"id": "x"}'),
        (3, None, None, None),
    ]


def test_a_new_checkpoint_goes_on_where_the_group_is(
    kafka: EmbeddedKafka, job: Job, group: str, written: list[tuple[int, int, bytes, bytes]]
) -> None:
    job.run(checkpoint="first")
    assert "read 0 rows" in job.run(checkpoint="second")
    assert job.rows("partition", "offset", "key", "value") == written
    kafka.produce(job.topic, ["more"] * 30)
    assert "read 30 rows" in job.run(checkpoint="third")
    rows = job.rows("partition", "offset")
    assert len(rows) == len(set(rows)) == 230
    assert {each.lag for each in kafka.describe_group(group)} == {0}


def test_the_same_checkpoint_reads_what_is_new(kafka: EmbeddedKafka, job: Job, written: list[object]) -> None:
    job.run()
    kafka.produce(job.topic, ["more"] * 30)
    assert "read 30 rows" in job.run()
    assert len(set(job.rows("partition", "offset"))) == len(job.rows("partition", "offset")) == 230


def test_a_query_that_fails_is_told_and_ends_with_1(job: Job) -> None:
    with pytest.raises(AssertionError, match=r"(?s)group_to_parquet: .*Topic 'missing-topic' cannot be read"):
        job.run("--option", "subscribe=missing-topic")


def test_sigterm_ends_a_running_job_and_its_membership(
    kafka: EmbeddedKafka, job: Job, group: str, written: list[object]
) -> None:
    command = [sys.executable, *job.arguments()]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert any(line.startswith("batch ") for line in running.stdout)
            assert len(kafka.describe_members(group)) == 1
            running.send_signal(signal.SIGTERM)
            said, _ = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
    assert running.returncode == 0, said
    await_condition(lambda: kafka.group_state(group) == "Empty")


def test_a_spark_cluster_gives_the_same(
    standalone: str, job: Job, tmp_path: Path, written: list[tuple[int, int, bytes, bytes]]
) -> None:
    package = shutil.make_archive(str(tmp_path / "package"), "zip", REPOSITORY, "spark_group_source")
    sizes = ("--conf", "spark.executor.cores=1", "--conf", "spark.executor.memory=512m", "--driver-memory", "512m")
    said = job.run(spark=("--master", standalone, "--py-files", package, *sizes))
    assert "read 200 rows" in said
    assert job.rows("partition", "offset", "key", "value") == written


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """URL of a Spark master with two workers, each a process of its own."""
    work = tmp_path / "spark"
    work.mkdir()
    watchdog = Watchdog(work)
    daemons = []
    try:
        port, *_ = free_ports(1)
        url = f"spark://{HOST}:{port}"
        daemons.append(start_daemon(work, "master.Master", "--port", str(port)))
        watchdog.watch(daemons[-1].pid)
        await_condition(lambda: "I have been elected leader" in (work / "master.Master.log").read_text())
        for _ in range(2):
            sizes = ("--cores", "1", "--memory", "600m", "--work-dir", str(work / "apps"))
            daemons.append(start_daemon(work, "worker.Worker", *sizes, url))
            watchdog.watch(daemons[-1].pid)
        await_condition(lambda: (work / "master.Master.log").read_text().count("Registering worker") == 2)
        yield url
    finally:
        watchdog.close()
        for daemon in daemons:
            daemon.wait(PATIENCE_S)


def start_daemon(work: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a process of Spark's standalone cluster; its log is NAME.log."""
    home = Path(pyspark.__file__).parent
    # Spark's own log settings: the lines that are waited for are INFO.
    settings = {**environment(), "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(work), "SPARK_DAEMON_MEMORY": "256m"}
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", HOST, "--webui-port", "0", *arguments]
    with (work / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=settings, stdout=log, stderr=log)


def await_condition(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = Deadline.after(PATIENCE_S)
    while not holds():
        assert not deadline.expired()
        time.sleep(0.1)
