"""Streaming queries in processes of their own that a test can stop, signal or kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_group_source.testing import EmbeddedKafka
from tests.fake import FakeKafka
from tests.integration.job_process import environment, family, kill

SCRIPT = Path(__file__).parent / "run_query.py"
PLAIN = Path(__file__).parent / "micro_batches.py"
JVM, READER = "org.apache.spark.deploy.SparkSubmit", "python_streaming_source_runner"
"""In the command lines of Spark's JVM, and of the stream runner, which contains the group member."""

TIMEOUT_S = 180.0
POLL_S = 0.05

Place = tuple[int, int]
"""Partition and offset of a record."""


def eventually(condition: Callable[[], object], deadline: float = TIMEOUT_S, what: str = "it") -> float:
    """Waits until the condition holds and returns the seconds; fails after ``deadline`` seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < deadline, f"{what} did not happen within {deadline:.0f} s"
        time.sleep(POLL_S)
    return time.monotonic() - began


SESSION_MS = 6000

TIMES = {
    "classic": {"kafka.session.timeout.ms": f"{SESSION_MS}", "kafka.heartbeat.interval.ms": "200"},
    "consumer": {"kafka.group.protocol": "consumer"},
}
"""Options of members that react quickly, by group protocol. With KIP-848 the brokers set the times: the embedded Kafka
the same interval, and :func:`tests.integration.standing.shorten_sessions` the same session."""


def source_options(
    kafka: EmbeddedKafka | FakeKafka, topic: str, group: str, protocol: str = "classic", **more: str
) -> dict[str, str]:
    """Returns options of a source that reacts quickly to its group: 5 heartbeats a second, sessions of 6 s."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **TIMES[protocol],
        **more,
    }


class Run:
    """One run of a query in a separate process, with ``settings.json`` and ``log`` in the directory ``work``.

    Each attempt at a batch is in ``rows/BATCH-ATTEMPT.json`` of the checkpoint.
    """

    def __init__(self, command: list[str], work: Path, checkpoint: Path, settings: dict[str, Any], **more: Any) -> None:
        self.work, self._checkpoint = work, checkpoint
        work.mkdir()
        (work / "settings.json").write_text(json.dumps({**settings, "checkpoint": str(checkpoint)}))
        with (work / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, str(work)], stdout=log, stderr=log, **more)
        self.pid = self._process.pid

    def log(self) -> str:
        """The console output of the process and its JVM."""
        return (self.work / "log").read_text(errors="replace")

    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def until(self, condition: Callable[[], object], deadline: float = TIMEOUT_S, what: str = "it") -> float:
        """Like :func:`eventually`, but fails at once if the process has ended."""

        def holds() -> object:
            assert self.running(), f"the query has ended: {self.log()[-4000:]}"
            return condition()

        return eventually(holds, deadline, what)

    def batches(self) -> list[int]:
        """The batches that this and earlier runs with the checkpoint have read."""
        return sorted({int(each.stem.split("-")[0]) for each in self._checkpoint.glob("rows/*.json")})

    def attempts(self, batch: int) -> list[list[Place]]:
        """The rows of each attempt at a batch, in order."""
        found = sorted(self._checkpoint.glob(f"rows/{batch}-*.json"), key=lambda each: int(each.stem.split("-")[1]))
        return [[(partition, offset) for partition, offset in json.loads(each.read_text())] for each in found]

    def places(self, *batches: int) -> list[Place]:
        """The rows of the last attempt at each batch, or at these batches."""
        return [place for batch in batches or self.batches() for place in self.attempts(batch)[-1]]

    def await_end(self) -> None:
        """Waits until the run ends; fails if it ends with an error."""
        code = self._process.wait(TIMEOUT_S)
        assert code == 0, f"exit code {code}: {self.log()[-4000:]}"

    def kill(self) -> None:
        """Kills all of its processes at once (SIGKILL), like the loss of the machine."""
        kill(self._process)


class QueryProcess(Run):
    """A run with Spark: the Python process that starts it, its JVM, and Spark's Python processes.

    Args:
        launcher: what starts the script instead of this Python, such as ``spark-submit``.
        beside: another group, for which a second query of the same driver reads the same topic.
        held: whether no batch ends before there is a file ``release``.
    """

    def __init__(
        self,
        work: Path,
        options: dict[str, str],
        launcher: str = sys.executable,
        available_now: bool = False,
        beside: str = "",
        held: bool = False,
    ) -> None:
        settings = {"options": options, "available_now": available_now, "beside": beside, "held": held}
        # A killed process cannot clean up.
        own = environment() | {"SPARK_LOCAL_DIRS": str(work / "local"), "TMPDIR": str(long_directory(work))}
        # A separate session, so that Ctrl-C reaches only the tests.
        given = {"env": own, "stdin": subprocess.PIPE, "start_new_session": True}
        super().__init__([launcher, str(SCRIPT)], work, work / "checkpoint", settings, **given)
        self._known: set[int] = set()

    def processes(self, of: str = "") -> list[int]:
        """The ids of all living descendants, including known orphans, whose command line has this text."""
        found = family(self.pid, *self._known)
        self._known |= found.keys()
        return [pid for pid, line in found.items() if of in line]

    def stop(self) -> None:
        """Stops the query in order and waits until its processes end."""
        self.processes()
        self._process.communicate(timeout=TIMEOUT_S)
        self.await_end()
        eventually(lambda: not self.processes(), what="the end of all its processes")

    def kill(self) -> None:
        kill(self._process, *self.processes())
        self._process.communicate()


def long_directory(work: Path) -> Path:
    """A directory for temporary files whose path is too long for a Unix socket, as on YARN and Slurm."""
    made = work.with_name(f"{work.name}-{'temporary' * 11}")
    made.mkdir()
    return made


class PlainQuery(Run):
    """A run without Spark, which starts in a second: see ``micro_batches``.

    ``pause`` are events at which the run waits for :meth:`go_on`, or for its death.
    """

    def __init__(self, work: Path, checkpoint: Path, options: dict[str, str], *pause: str) -> None:
        settings = {"options": options, "pause": pause}
        super().__init__([sys.executable, str(PLAIN)], work, checkpoint, settings)

    def events(self) -> list[str]:
        path = self.work / "events"
        return path.read_text().splitlines() if path.exists() else []

    def reaches(self, event: str) -> PlainQuery:
        """Waits for an event."""
        self.until(lambda: event in self.events(), what=event)
        return self

    def go_on(self, event: str) -> None:
        """Ends the pause at an event."""
        (self.work / event).touch()

    def every_place(self) -> list[Place]:
        """The rows of all attempts at all batches."""
        return [place for batch in self.batches() for attempt in self.attempts(batch) for place in attempt]

    def end(self, signal: str = "stop") -> None:
        """Ends in order when it is idle; with ``stop between batches`` after its running batch."""
        (self.work / signal).touch()
        self.await_end()
