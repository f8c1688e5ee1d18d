"""A member is gone soon after its application was told to stop, in whatever way and at whatever moment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import environment, family, kill, spark_submit
from tests.integration.query_process import JVM, READER, TIMEOUT_S, eventually
from tests.integration.standing import caught_up, fill
from tests.integration.told_application import FUNCTION, TASK

SCRIPT = Path(__file__).parent / "told_application.py"
SESSION_S = 45
LEAVE_S = 20.0
"""In which the member must be gone: far less than its session, and more than a busy machine needs. Less than 2 s are
normal."""

IDLE, JOINING = "idle", "joining"
AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
CONTAINER = ["unshare", *AS_ROOT, "--pid", "--fork", "--mount-proc", "--kill-child"]
"""Starts its command as process 1. Without root it needs user namespaces, which some systems forbid."""
TINI = "tini"


class Way(NamedTuple):
    """How an application runs, and how it is told to stop."""

    name: str
    launcher: str = "python"
    """What starts the script: ``python`` or ``spark-submit``."""
    init: str | None = None
    """Process 1 of its container: ``tini``, or empty if that is the launcher. ``None``: it is in no container."""
    told: str = "group"
    """What is told: the ``group``, the ``jvm``, ``python`` or process ``one`` by a signal, or ``stdin`` by a line."""
    number: signal.Signals = signal.SIGTERM
    handler: bool = False
    """Whether the script has the signal handler of docs/howto.md."""
    kernel: bool = False
    """Whether it stops Spark and lives on."""


WAYS = {
    way.name: way
    for way in (
        Way("tini-spark-submit", "spark-submit", init=TINI, told="one"),
        Way("spark-submit-is-1", "spark-submit", init="", told="one"),
        Way("tini-python", init=TINI, told="one"),
        Way("python-is-1", init="", told="one"),
        Way("tini-python-handler", init=TINI, told="one", handler=True),
        Way("jvm-of-spark-submit", "spark-submit", told="jvm"),
        Way("group-of-spark-submit", "spark-submit"),
        Way("python-alone", told="python"),
        Way("hangup", number=signal.SIGHUP),
        Way("hangup-of-spark-submit", "spark-submit", number=signal.SIGHUP),
        Way("interrupt", number=signal.SIGINT),
        Way("spark-stop-in-a-kernel", told="stdin", kernel=True),
        Way("handler", told="python", handler=True),
    )
}


class Application:
    """A run of ``told_application`` in a session of its own, perhaps in a container."""

    def __init__(self, work: Path, way: Way, options: dict[str, str], held: str, register: bool) -> None:
        self._way, self._work = way, work
        work.mkdir()
        settings = {"options": options, "held": held, "register": register, **way._asdict()}
        (work / "settings.json").write_text(json.dumps(settings))
        command = [{"python": sys.executable, "spark-submit": spark_submit()}[way.launcher], str(SCRIPT), str(work)]
        if way.init:
            command = [way.init, "-s", "--", *command]
        if way.init is not None:
            command = [*CONTAINER, *command]
        own = environment() | {"SPARK_LOCAL_DIRS": str(work / "local"), "TMPDIR": str(work)}
        with (work / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env=own, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._known: set[int] = set()

    def reaches(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            assert self.process.poll() is None, self.log()
            return condition()

        eventually(holds, what=what)

    def wrote(self, name: str) -> bool:
        """Whether the application has written this file."""
        return (self._work / name).exists()

    def log(self) -> str:
        return (self._work / "log").read_text(errors="replace")

    def processes(self, of: str = "") -> list[int]:
        """The living descendants, including known orphans, whose command line has this text."""
        found = family(self.process.pid, *self._known)
        self._known |= found.keys()
        return [pid for pid, line in found.items() if of in line]

    def tell(self) -> None:
        """Tells it to stop."""
        self.processes()
        way = self._way
        if way.told == "stdin":
            assert self.process.stdin is not None
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        elif way.told == "group":
            os.killpg(self.process.pid, way.number)
        elif way.told == "jvm":
            os.kill(self.processes(JVM)[0], way.number)
        elif way.told == "python":
            os.kill(self.process.pid, way.number)
        else:
            os.kill(child_of(self.process.pid), way.number)

    def kill(self) -> None:
        """Kills all of its processes at once, like the loss of the machine."""
        kill(self.process, *self.processes())
        self.process.communicate()


def child_of(pid: int) -> int:
    """The only child: process 1 of a container, by its id outside."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


Run = Callable[..., Application]


@pytest.fixture
def run(kafka: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Run]:
    """Starts applications of the test's group: ``run(way, topic, held="", register=True)``."""
    made: list[Application] = []

    def begin(way: Way, topic: str, held: str = "", register: bool = True) -> Application:
        why_not = cannot_run(way)
        if why_not:
            pytest.skip(why_not)
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "kafka.session.timeout.ms": f"{SESSION_S}000",
        }
        made.append(Application(tmp_path / f"run-{len(made)}", way, options, held, register))
        return made[-1]

    yield begin
    for each in made:
        each.kill()


def cannot_run(way: Way) -> str:
    """Why this machine cannot run it; empty if it can."""
    if way.init is None:
        return ""
    if shutil.which("unshare") is None:
        return "no unshare on this machine: SIGTERM to process 1 is not tested"
    tried = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"no container on this machine: SIGTERM to process 1 is not tested: {tried.stderr.strip()}"
    if way.init and shutil.which(way.init) is None:
        return f"no {way.init} on this machine: SIGTERM to a container with an init is not tested"
    return ""


def ours(kafka: EmbeddedKafka, group: str) -> int:
    """How many members the coordinator has that are no occupant."""
    return sum(not each.client_id.startswith("occupant") for each in kafka.members(group))


@contextlib.contextmanager
def occupied(kafka: EmbeddedKafka, group: str, topic: str) -> Iterator[None]:
    """A member that never rejoins: whoever joins after it waits for the rebalance timeout, 5 minutes."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group, client_id="occupant",
        partition_assignment_strategy=[CooperativeStickyAssignor],
    )  # fmt: skip
    try:
        eventually(lambda: consumer.poll(200) or consumer.assignment(), what="the assignment of the occupant")
        yield
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def await_moment(kafka: EmbeddedKafka, application: Application, topic: str, group: str, moment: str) -> None:
    """Returns when the query is in this state."""
    if moment == JOINING:
        application.reaches(lambda: ours(kafka, group) == 1 and application.processes(READER), "a member that joins")
        time.sleep(0.5)
    elif moment == IDLE:
        application.reaches(lambda: caught_up(kafka, topic, group), "the commit of all records")
    else:
        application.reaches(lambda: application.wrote("held"), "a held batch")


def seconds_until_left(
    kafka: EmbeddedKafka, run: Run, topic: str, group: str, way: Way, moment: str, register: bool = True
) -> tuple[float, Application]:
    """Runs one cell: how long the member stays after its application was told."""
    fill(kafka, topic, 5)
    with contextlib.ExitStack() as stack:
        if moment == JOINING:
            stack.enter_context(occupied(kafka, group, topic))
        application = run(way, topic, held=moment if moment in (TASK, FUNCTION) else "", register=register)
        application.reaches(lambda: application.wrote("ready"), "the start of the query")
        await_moment(kafka, application, topic, group, moment)
        application.tell()
        limit = float(os.environ.get("TOLD_LIMIT_S", LEAVE_S))
        took = eventually(lambda: ours(kafka, group) == 0, limit, "leaving")
    return took, application


CONTAINERS = ("tini-spark-submit", "spark-submit-is-1")
CELLS = [
    *((way, moment) for way in CONTAINERS for moment in (IDLE, TASK, FUNCTION, JOINING)),
    *((way, moment) for way in ("tini-python", "spark-stop-in-a-kernel") for moment in (IDLE, FUNCTION, JOINING)),
    *((way, FUNCTION) for way in ("python-is-1", "tini-python-handler", "handler", "python-alone", "interrupt")),
    *((way, moment) for way in ("hangup", "hangup-of-spark-submit") for moment in (IDLE, FUNCTION)),
    ("jvm-of-spark-submit", JOINING),
    ("group-of-spark-submit", FUNCTION),
]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "moment"), CELLS)
def test_the_member_leaves_when_its_application_is_told_to_stop(
    kafka: EmbeddedKafka, run: Run, topic: Callable[..., str], group: str, way: str, moment: str
) -> None:
    took, application = seconds_until_left(kafka, run, topic(partitions=2), group, WAYS[way], moment)
    print(f"{way}, {moment}: left after {took:.2f} s")
    # Of a batch that runs, Spark itself may say so: the end of the JVM fails its task, the end of Python its function.
    if moment in (IDLE, JOINING):
        assert "terminated with error" not in application.log()


@pytest.mark.slow
@pytest.mark.parametrize("way", CONTAINERS)
def test_the_member_of_a_session_without_register_leaves_before_its_container_ends(
    kafka: EmbeddedKafka, run: Run, topic: Callable[..., str], group: str, way: str
) -> None:
    took, _ = seconds_until_left(kafka, run, topic(partitions=2), group, WAYS[way], IDLE, register=False)
    print(f"{way} without register: left after {took:.2f} s")


@pytest.mark.slow
def test_all_processes_end_with_their_application(
    kafka: EmbeddedKafka, run: Run, topic: Callable[..., str], group: str
) -> None:
    _, application = seconds_until_left(kafka, run, topic(partitions=2), group, WAYS["hangup"], FUNCTION)
    eventually(lambda: not application.processes(), TIMEOUT_S, "the end of all processes")
