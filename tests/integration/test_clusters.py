"""Spark clusters: how the package gets to the executors, what they keep, and what the loss of one does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration import standalone
from tests.integration.bare_python import DEPENDENCIES, REPOSITORY, bare_python, copy_package, zipped_package
from tests.integration.job_process import TIMEOUT_S, environment, family, kill, spark_submit
from tests.integration.query_process import eventually, source_options
from tests.integration.standalone import Standalone
from tests.integration.standing import fill

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "run_on_cluster.py"
THIS_TREE = ("--conf", f"spark.executorEnv.PYTHONPATH={REPOSITORY}")
"""Executors do not have the driver's PYTHONPATH: they would take what is installed."""

Place = tuple[int, int]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Two workers; only one is left after a test that kills the other."""
    with standalone.running(tmp_path_factory.mktemp("cluster") / "spark") as running:
        yield running


class Run:
    """One run of ``run_on_cluster.py`` over a topic; reads each partition in a task of its own."""

    def __init__(self, kafka: EmbeddedKafka, work: Path, topic: str, group: str, **more: str) -> None:
        self.work = work
        work.mkdir()
        options = source_options(kafka, topic, group, minRecordsPerTask="1", **more)
        (work / "settings.json").write_text(json.dumps(options))

    def start(self, *spark: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts it with spark-submit, in the directory of its own. Of this tree it sees only what it is given."""
        surrounding = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
        command = [spark_submit(), *spark, str(SCRIPT), str(self.work)]
        with (self.work / "log").open("wb") as log:
            return subprocess.Popen(command, env={**surrounding, **variables}, cwd=self.work, stdout=log, stderr=log)

    def finish(self, running: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
        """Waits for its end; what it told of the Python workers."""
        try:
            assert running.wait(TIMEOUT_S) == 0, self.log()
        finally:
            kill(running)
        assert "commits each batch when Spark has completed it" in (self.work / "log").read_text(errors="replace")
        workers: list[dict[str, Any]] = json.loads((self.work / "workers.json").read_text())
        return workers

    def log(self) -> str:
        return (self.work / "log").read_text(errors="replace")[-8000:]

    def notes(self) -> list[dict[str, Any]]:
        """What tasks noted of their executors."""
        return [json.loads(each.read_text()) for each in self.work.glob("task-*.json")]

    def places(self) -> list[Place]:
        """Where the rows came from."""
        tables = [pq.read_table(each) for each in self.work.glob("rows/*.parquet")]
        rows = [row for each in tables for row in each.select(["partition", "offset"]).to_pylist()]
        return [(row["partition"], row["offset"]) for row in rows]


@pytest.fixture
def run(kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], group: str) -> tuple[Run, set[Place]]:
    """A run over a topic of 4 partitions, and where its records are."""
    name = topic(partitions=4)
    return Run(kafka, tmp_path / "run", name, group, maxOffsetsPerTrigger="80"), fill(kafka, name, 50)


def test_py_files_ship_the_package_to_executors_as_a_zip(
    cluster: Standalone, run: tuple[Run, set[Place]], tmp_path: Path
) -> None:
    reading, everything = run
    python = str(bare_python(tmp_path / "bare") / "bin" / "python")
    package = zipped_package(tmp_path)
    # Spark does not give them to the process on the driver in which a stream's reader lives.
    driver = {"PYSPARK_PYTHON": python, "PYTHONPATH": package}
    workers = reading.finish(reading.start(*cluster.submit, "--py-files", package, **driver))
    assert sorted(reading.places()) == sorted(everything)
    # In the executor's own directory, where Spark has put it.
    assert {each["packages"][0] for each in workers} == {"./package.zip/spark_group_source/__init__.py"}


def test_an_archive_ships_the_package_and_its_dependencies_to_bare_executors(
    cluster: Standalone, run: tuple[Run, set[Place]], tmp_path: Path
) -> None:
    reading, everything = run
    python = str(bare_python(tmp_path / "bare", *DEPENDENCIES) / "bin" / "python")
    packages = copy_package(tmp_path / "packages")
    archive = shutil.make_archive(str(tmp_path / "packages"), "gztar", packages)
    ship = ("--archives", f"{archive}#packages", "--conf", "spark.executorEnv.PYTHONPATH=packages")
    workers = reading.finish(reading.start(*cluster.submit, *ship, PYSPARK_PYTHON=python, PYTHONPATH=str(packages)))
    assert sorted(reading.places()) == sorted(everything)
    assert all("/apps/" in path for each in workers for path in each["packages"]), workers


def test_a_worker_killed_during_a_batch_loses_and_repeats_nothing(
    cluster: Standalone, run: tuple[Run, set[Place]]
) -> None:
    reading, everything = run
    (reading.work / "hold").touch()
    running = reading.start(*cluster.submit, *THIS_TREE, PYTHONPATH=str(REPOSITORY))
    try:
        eventually(lambda: reading.notes() or running.poll() is not None, TIMEOUT_S, what="a task")
        assert running.poll() is None, reading.log()
        daemon = reading.notes()[0]["daemon"]
        kill(next(each for each in cluster.workers if daemon in family(each.pid)))
        (reading.work / "hold").unlink()
        reading.finish(running)
    finally:
        kill(running)
    assert sorted(reading.places()) == sorted(everything)
