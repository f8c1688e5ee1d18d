"""A streaming query in a separate process that a test can stop, signal or kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_group_source.testing import EmbeddedKafka
from tests.fake import FakeKafka

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "run_query.py"
PLAIN = Path(__file__).parent / "micro_batches.py"
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


class QueryProcess:
    """One run of a query: the Python process that starts it, its JVM, and Spark's Python processes.

    Args:
        work: directory of this run, which also receives the rows.
        options: options of the source.
        beside: another group, for which a second query of the same driver reads the same topic.
    """

    def __init__(self, work: Path, options: dict[str, str], available_now: bool = False, beside: str = "") -> None:
        self.work = work
        (work / "rows").mkdir(parents=True)
        settings = {"options": options, "available_now": available_now, "beside": beside}
        (work / "settings.json").write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes] | None = None
        self._family: set[int] = set()

    def start(self, *launcher: str) -> QueryProcess:
        """Starts the query with this Python, or with a launcher such as ``spark-submit``."""
        command = [*(launcher or (sys.executable,)), str(SCRIPT), str(self.work)]
        with (self.work / "log").open("ab") as log:
            # A separate session identifies its processes, and Ctrl-C reaches only the tests.
            self._process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        return self

    # State

    @property
    def pid(self) -> int:
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def log(self) -> str:
        """Returns the console output of the process and its JVM."""
        return (self.work / "log").read_text(errors="replace")

    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> dict[int, str]:
        """Returns process id and command line of all living descendants, including orphans."""
        told = subprocess.run(
            ["ps", "-eww", "-o", "pid=,ppid=,sess=,stat=,args="], capture_output=True, text=True, check=True
        )
        table = [line.split(None, 4) for line in told.stdout.splitlines()]
        alive = {int(pid): (int(parent), args) for pid, parent, _, stat, args in table if not stat.startswith("Z")}
        family = {self.pid} | self._family
        grown = True
        while grown:
            more = {pid for pid, (parent, _) in alive.items() if parent in family} - family
            family |= more
            grown = bool(more)
        self._family = family
        return {pid: alive[pid][1] for pid in family if pid in alive}

    def jvm(self) -> int:
        """Returns the process id of the JVM."""
        return next(pid for pid, args in self.processes().items() if "org.apache.spark.deploy.SparkSubmit" in args)

    def script(self) -> int:
        """Returns the process id of the Python process that started the query."""
        return next(
            pid for pid, args in self.processes().items() if "python" in args.split()[0] and str(SCRIPT) in args
        )

    def reader(self) -> int:
        """Returns the process id of the stream runner, which contains the group member."""
        return self.readers()[0]

    def readers(self) -> list[int]:
        """Returns the process ids of the stream runners of all queries of this driver."""
        return [pid for pid, args in self.processes().items() if "python_streaming_source_runner" in args]

    def until(self, condition: Callable[[], object], deadline: float = TIMEOUT_S, what: str = "it") -> float:
        """Like :func:`eventually`, but fails at once if the process has ended."""

        def holds() -> object:
            assert self.running(), f"the query has ended: {self.log()[-4000:]}"
            return condition()

        return eventually(holds, deadline, what)

    def attempts(self, batch: int) -> list[pa.Table]:
        """Returns the rows of each attempt at a batch, in order."""
        found = sorted(self.work.glob(f"rows/{batch}-*.parquet"), key=lambda each: int(each.stem.split("-")[1]))
        return [pq.read_table(each) for each in found]

    def batches(self) -> list[int]:
        """Returns the ids of the batches that were read, sorted."""
        return sorted({int(each.stem.split("-")[0]) for each in self.work.glob("rows/*.parquet")})

    def places(self) -> list[Place]:
        """Returns partition and offset of each row, from the last attempt at each batch."""
        found: list[Place] = []
        for batch in self.batches():
            rows = self.attempts(batch)[-1]
            found += zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
        return found

    # Control

    def hold(self) -> QueryProcess:
        """Keeps batches from ending, until :meth:`release`."""
        (self.work / "hold").touch()
        return self

    def release(self) -> None:
        """Lets batches end."""
        (self.work / "hold").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stops the query in order and waits until its processes end."""
        self.processes()
        self._close_stdin()
        self.await_end()

    def await_end(self, deadline: float = TIMEOUT_S) -> None:
        """Waits until the run ends; fails if it ends with an error."""
        assert self._process is not None
        code = self._process.wait(deadline)
        assert code == 0, f"exit code {code}: {self.log()[-4000:]}"
        eventually(lambda: not self.processes(), what="the end of all its processes")

    def kill(self) -> None:
        """Kills all of its processes at once (SIGKILL), like the loss of the machine."""
        if self._process is None:
            return
        processes = self.processes()
        # Suspended first, so that no process sees the death of another and leaves the group in order.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait()
        self._close_stdin()

    def _close_stdin(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        return {
            **kept,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A killed process cannot clean up.
            "SPARK_LOCAL_DIRS": str(self.work / "local"),
        }


class PlainQuery:
    """One run of a query without Spark, in a separate process that starts in a second: see ``micro_batches``.

    Args:
        work: directory of this run.
        checkpoint: checkpoint of the query, which also receives the rows.
        options: options of the source.
        pause: events at which the run waits for :meth:`go_on`, or for its death.
    """

    def __init__(self, work: Path, checkpoint: Path, options: dict[str, str], *pause: str) -> None:
        self._work, self._checkpoint = work, checkpoint
        work.mkdir()
        settings = {"options": options, "checkpoint": str(checkpoint), "pause": pause}
        (work / "settings.json").write_text(json.dumps(settings))
        with (work / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PLAIN), str(work)], cwd=REPOSITORY, stdout=log, stderr=log
            )
        self.pid = self._process.pid

    def log(self) -> str:
        return (self._work / "log").read_text()

    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def events(self) -> list[str]:
        path = self._work / "events"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition: Callable[[], object], deadline: float = TIMEOUT_S, what: str = "it") -> float:
        """Like :func:`eventually`, but fails at once if the process has ended."""

        def holds() -> object:
            assert self.running(), self.log()[-4000:]
            return condition()

        return eventually(holds, deadline, f"{what} after {self.events()}")

    def reaches(self, event: str) -> PlainQuery:
        """Waits for an event."""
        self.until(lambda: event in self.events(), what=event)
        return self

    def go_on(self, event: str) -> None:
        """Ends the pause at an event."""
        (self._work / event).touch()

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

    def every_place(self) -> list[Place]:
        """The rows of all attempts at all batches."""
        return [place for batch in self.batches() for attempt in self.attempts(batch) for place in attempt]

    def end(self, signal_: str = "stop") -> None:
        """Ends in order when it is idle."""
        (self._work / signal_).touch()
        assert self._process.wait(TIMEOUT_S) == 0, self.log()[-4000:]

    def stop_between_batches(self) -> None:
        """Ends in order after its running batch, even if there is more to read."""
        self.end("stop between batches")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
