"""Spark clusters: how the package gets to the executors, what they keep, and what the loss of one does."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration import standalone
from tests.integration.bare_python import DEPENDENCIES, REPOSITORY, bare_python, copy_package, zipped_package
from tests.integration.job_process import environment, family, kill, spark_submit
from tests.integration.query_process import Place, Run, eventually, source_options
from tests.integration.standalone import Standalone
from tests.integration.standing import fill

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "run_on_cluster.py"
THIS_TREE = ("--conf", f"spark.executorEnv.PYTHONPATH={REPOSITORY}")
"""Executors do not have the driver's PYTHONPATH: they would take what is installed."""

NO_NAME = "no such name on this host"
UNREACHABLE = f"""
import socket, sys
if "pyspark.daemon" in sys.orig_argv:
    def getaddrinfo(host, port, *more, **named):
        raise socket.gaierror(socket.EAI_NONAME, "{NO_NAME}")
    socket.getaddrinfo = getaddrinfo
"""
"""``sitecustomize.py`` of a host that resolves no name, in Spark's Python workers only."""
NEVER_REACHED = "this executor has never reached a broker"
SOON_S = 60.0
"""The task fails 15 s after its warning. Then the application ends, on a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Two workers; only one is left after a test that kills the other."""
    with standalone.running(tmp_path_factory.mktemp("cluster") / "spark") as running:
        yield running


class ClusterRun(Run):
    """One run of ``run_on_cluster.py``, which reads each partition in a task of its own."""

    def finish(self) -> list[dict[str, Any]]:
        """Waits for its end; what it told of the Python workers."""
        self.await_end()
        assert "commits each batch when Spark has completed it" in self.log()
        workers: list[dict[str, Any]] = json.loads((self.work / "workers.json").read_text())
        return workers


Start = Callable[..., ClusterRun]


@pytest.fixture
def everything(kafka: EmbeddedKafka, topic: Callable[..., str]) -> tuple[str, list[Place]]:
    """A topic of 4 partitions, and where its records are, sorted."""
    name = topic(partitions=4)
    return name, sorted(fill(kafka, name, 50))


@pytest.fixture
def start(
    cluster: Standalone, kafka: EmbeddedKafka, tmp_path: Path, everything: tuple[str, list[Place]], group: str
) -> Iterator[Start]:
    """Starts a run with spark-submit, in a directory of its own. Of this tree it sees only what it is given."""
    options = source_options(kafka, everything[0], group, minRecordsPerTask="1", maxOffsetsPerTrigger="80")
    work = tmp_path / "run"
    running = []

    def begin(*spark: str, held: bool = False, **variables: str) -> ClusterRun:
        command = [spark_submit(), *cluster.submit, *spark, str(SCRIPT)]
        surrounding = {name: value for name, value in environment().items() if name != "PYTHONPATH"} | variables
        settings = {"options": options, "held": held}
        running.append(ClusterRun(command, work, work / "checkpoint", settings, env=surrounding, cwd=tmp_path))
        return running[-1]

    yield begin
    for each in running:
        each.kill()


def test_py_files_ship_the_package_to_executors_as_a_zip(
    start: Start, everything: tuple[str, list[Place]], tmp_path: Path
) -> None:
    python = str(bare_python(tmp_path / "bare") / "bin" / "python")
    package = zipped_package(tmp_path)
    # Spark does not give them to the process on the driver in which a stream's reader lives.
    driver = {"PYSPARK_PYTHON": python, "PYTHONPATH": package}
    run = start("--py-files", package, **driver)
    workers = run.finish()
    assert sorted(run.places()) == everything[1]
    # In the executor's own directory, where Spark has put it.
    assert {each["packages"][0] for each in workers} == {"./package.zip/spark_group_source/__init__.py"}


def test_an_archive_ships_the_package_and_its_dependencies_to_bare_executors(
    start: Start, everything: tuple[str, list[Place]], tmp_path: Path
) -> None:
    python = str(bare_python(tmp_path / "bare", *DEPENDENCIES) / "bin" / "python")
    packages = copy_package(tmp_path / "packages")
    archive = shutil.make_archive(str(tmp_path / "packages"), "gztar", packages)
    ship = ("--archives", f"{archive}#packages", "--conf", "spark.executorEnv.PYTHONPATH=packages")
    run = start(*ship, PYSPARK_PYTHON=python, PYTHONPATH=str(packages))
    workers = run.finish()
    assert sorted(run.places()) == everything[1]
    assert all("/apps/" in path for each in workers for path in each["packages"]), workers


def test_an_executor_that_reaches_no_broker_says_so_and_fails_soon(
    cluster: Standalone, start: Start, tmp_path: Path
) -> None:
    """The driver reaches the brokers. Otherwise its task would be silent for its poll timeout of 120 s."""
    apart = tmp_path / "apart"
    apart.mkdir()
    (apart / "sitecustomize.py").write_text(UNREACHABLE)
    once = ("--conf", "spark.task.maxFailures=1", "--conf", f"spark.executorEnv.PYTHONPATH={apart}:{REPOSITORY}")
    run = start(*once, PYTHONPATH=str(REPOSITORY))
    warning = f"WARNING spark_group_source.fetch.task_timeout: fetch: host {socket.gethostname()}: {NEVER_REACHED}"
    run.until(lambda: warning in cluster.executors_stderr(), what="the warning")
    after_warning = eventually(lambda: not run.running(), what="the error")
    assert after_warning < SOON_S
    assert re.search(rf"DEADLINE_EXCEEDED.*{NEVER_REACHED}.*The task ran on host {socket.gethostname()}\.", run.log())
    assert NO_NAME in run.log()


def test_a_worker_killed_during_a_batch_loses_and_repeats_nothing(
    cluster: Standalone, start: Start, everything: tuple[str, list[Place]]
) -> None:
    run = start(*THIS_TREE, held=True, PYTHONPATH=str(REPOSITORY))
    daemon_file = run.work / "daemon"
    run.until(daemon_file.exists, what="a task")
    daemon = int(daemon_file.read_text())
    kill(next(each for each in cluster.workers if daemon in family(each.pid)))
    (run.work / "release").touch()
    run.finish()
    assert sorted(run.places()) == everything[1]
