"""YARN in cluster mode: how the package gets there, and what the death of each kind of container does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration import yarn
from tests.integration.bare_python import REPOSITORY, bare_python
from tests.integration.job_process import spark_submit
from tests.integration.query_process import SESSION_MS, Place, eventually, source_options
from tests.integration.standing import caught_up, fill
from tests.integration.yarn import EXECUTOR, MASTER, YarnCluster

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "run_on_yarn.py"
START_S = 300.0
"""An application starts two JVMs, and so does its second attempt."""
END_S = 60.0
LEAVES_S = 4.0
"""Far less than a session."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    with yarn.running(tmp_path_factory.mktemp("yarn") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as ``make dist`` builds it. pip downloads the build tool."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(REPOSITORY)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be fetched from PyPI")
    assert done.returncode == 0, done.stderr
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the dependencies and not this package."""
    return bare_python(tmp_path_factory.mktemp("python") / "bare") / "bin" / "python"


class Application:
    """One application, submitted with ``--py-files``; its driver runs on the cluster."""

    def __init__(self, cluster: YarnCluster, python: Path, wheel: Path, place: Path, settings: dict[str, object]):
        self._place, self._cluster = place, cluster
        (place / "rows").mkdir(parents=True)
        checkpoint = f"/checkpoints/{time.time_ns()}"  # on HDFS. Spark rejects hdfs:/// without a host here.
        (place / "settings.json").write_text(json.dumps({**settings, "checkpoint": checkpoint}))
        command = [spark_submit(), *cluster.arguments(python), "--py-files", str(wheel), str(SCRIPT)]
        with (place / "submitted").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(place / "settings.json")], env=cluster.environment(), stdout=log, stderr=log
            )

    def submitted(self) -> str:
        """The log of spark-submit."""
        return (self._place / "submitted").read_text(errors="replace")

    def until(self, condition: Callable[[], object], what: str, deadline: float = START_S) -> float:
        """Waits for a condition; returns the seconds. Fails at once if the application has ended."""

        def holds() -> object:
            assert self._process.poll() is None, self._cluster.logs()
            return condition()

        return eventually(holds, deadline, what)

    def attempts(self) -> list[tuple[int, list[Place]]]:
        """Number and rows of each attempt at a batch, in order."""
        files = sorted(self._place.glob("rows/*.json"), key=lambda each: int(each.stem.split("-")[1]))
        return [(int(each.stem.split("-")[0]), [(p, o) for p, o in json.loads(each.read_text())]) for each in files]

    def rows(self) -> list[Place]:
        """The rows of all attempts."""
        return [place for _, places in self.attempts() for place in places]

    def hold(self) -> None:
        """From now on no batch ends."""
        (self._place / "hold").touch()

    def release(self) -> None:
        (self._place / "hold").unlink()

    def await_end(self) -> int:
        return self._process.wait(START_S)

    def kill(self) -> None:
        """Kills the application as ``yarn application -kill`` does, if there is one."""
        names = re.findall(r"application_\d+_\d+", self.submitted())
        if names and self._process.poll() is None:
            self._cluster.kill(names[-1])

    def end(self) -> None:
        """Leaves no process of it."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        self._process.wait()


Submit = Callable[..., Application]


@pytest.fixture
def submit(
    cluster: YarnCluster, python: Path, wheel: Path, kafka: EmbeddedKafka, group: str, tmp_path: Path
) -> Iterator[Submit]:
    begun = []

    def begin(topic: str, available_now: bool = False, held: bool = False, **options: str) -> Application:
        place = tmp_path / "application"
        place.mkdir()
        if held:
            (place / "hold").touch()
        settings = {"options": source_options(kafka, topic, group, **options), "available_now": available_now}
        begun.append(Application(cluster, python, wheel, place, settings))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def test_a_wheel_by_py_files_is_enough_in_cluster_mode(
    cluster: YarnCluster, submit: Submit, kafka: EmbeddedKafka, topic: Callable[..., str], group: str
) -> None:
    """No PYTHONPATH: the stream's reader finds the package as well. The checkpoint is on HDFS."""
    name = topic(partitions=4)
    everything = sorted(fill(kafka, name, 50))
    application = submit(name, available_now=True)
    assert application.await_end() == 0, cluster.logs()
    assert sorted(application.rows()) == everything
    assert caught_up(kafka, name, group)
    assert "commits each batch when Spark has completed it" in cluster.logs()
    assert not kafka.members(group)
    eventually(lambda: not cluster.processes(), END_S, "the end of all processes")


def test_the_death_of_an_application_master_of_an_executor_and_of_the_application(
    cluster: YarnCluster, submit: Submit, kafka: EmbeddedKafka, topic: Callable[..., str], group: str
) -> None:
    """The master's second attempt repeats its held batch; another executor repeats nothing; each death is a leave."""
    name = topic(partitions=4)
    first = sorted(fill(kafka, name, 50))
    application = submit(name, held=True)
    application.until(application.attempts, what="the held batch")
    assert sorted(application.rows()) == first

    (master,) = cluster.containers(MASTER)
    os.kill(master, signal.SIGKILL)
    left = application.until(lambda: not kafka.members(group), what="the leave", deadline=SESSION_MS / 1000 + LEAVES_S)
    assert left < LEAVES_S
    again = application.until(lambda: len(application.attempts()) == 2, what="the second attempt")
    numbers, places = zip(*application.attempts(), strict=True)
    assert len(set(numbers)) == 1
    assert sorted(places[1]) == first
    application.release()
    application.until(lambda: caught_up(kafka, name, group), what="the commit")

    member = kafka.members(group)[0].consumer_id
    (executor,) = cluster.containers(EXECUTOR)
    os.kill(executor, signal.SIGKILL)
    second = fill(kafka, name, 50)
    recovered = application.until(lambda: caught_up(kafka, name, group), what="the commit with another executor")
    assert [each.consumer_id for each in kafka.members(group)] == [member]
    assert sorted(application.rows()[2 * len(first) :]) == sorted(second)

    application.hold()
    fill(kafka, name, 10)
    ended = len(application.attempts())
    application.until(lambda: len(application.attempts()) > ended, what="another held batch")
    application.kill()
    killed = eventually(lambda: not kafka.members(group), SESSION_MS / 1000 + LEAVES_S, "the leave")
    assert killed < LEAVES_S
    assert application.await_end() != 0
    eventually(lambda: not cluster.processes(), END_S, "the end of all processes")
    print(f"left {left:.1f} s, again {again:.1f} s, recovered {recovered:.1f} s, killed {killed:.1f} s")


def test_a_second_attempt_is_the_same_static_member(
    cluster: YarnCluster, submit: Submit, kafka: EmbeddedKafka, topic: Callable[..., str], group: str
) -> None:
    """The death of an application master is no leave of a static member, so no other member gets its partitions."""
    name = topic(partitions=4)
    everything = sorted(fill(kafka, name, 50))
    static = {"kafka.group.instance.id": "on-yarn", "kafka.session.timeout.ms": "600000"}
    application = submit(name, held=True, **static)
    application.until(application.attempts, what="the held batch")
    before = kafka.members(group)

    (master,) = cluster.containers(MASTER)
    os.kill(master, signal.SIGKILL)

    def has_second_attempt() -> bool:
        assert len(kafka.members(group)) == 1, "it left"
        return len(application.attempts()) == 2

    again = application.until(has_second_attempt, what="the second attempt")
    application.release()
    application.until(lambda: caught_up(kafka, name, group), what="the commit")
    assert sorted(application.attempts()[1][1]) == everything
    print(f"again {again:.1f} s, before {before}, after {kafka.members(group)}")
