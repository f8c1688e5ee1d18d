"""Runs the jobs with spark-submit, and kills them between the sink's write and Spark's commit."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ports import HOST

REPOSITORY = Path(__file__).resolve().parents[2]
JOBS = REPOSITORY / "jobs"
AVAILABLE_NOW = ("--trigger", "available-now")
SMALL = ("--max-offsets-per-trigger", "20")
# Who is killed cannot leave: the next run waits for the end of the session.
SHORT_SESSION = ("--option", "kafka.session.timeout.ms=6000", "--option", "kafka.heartbeat.interval.ms=1000")
TIMEOUT_S = 300.0
CHECK_INTERVAL_S = 0.005
"""Interval of checks for a batch that is written and not committed, a state that lasts tens of milliseconds. A busy
loop would take a core from the job."""


def environment() -> dict[str, str]:
    """Returns the environment of a job: this Python, this tree, a quiet console, no other Spark."""
    kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "SPARK_LOCAL_IP": HOST}


def spark_submit() -> str:
    """Returns the spark-submit command of this Python's PySpark."""
    return str(Path(sys.executable).parent / "spark-submit")


class Job:
    """One of the jobs, over one topic, for one group.

    Args:
        script: file in jobs/, or another path.
        work: directory of the output, the checkpoints and the logs.
        own: arguments of this job.
        spark: arguments of spark-submit.
    """

    def __init__(
        self,
        kafka: EmbeddedKafka,
        work: Path,
        topic: str,
        group: str,
        script: str = "group_to_parquet.py",
        own: tuple[str, ...] = (),
        spark: tuple[str, ...] = (),
    ) -> None:
        self.topic = topic
        self.output = work / "output"
        self._work = work
        self._spark = ("--master", "local[2]", *spark)
        source = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic, "--group", group)
        self._script = script
        self._own = [*source, *own, "--checkpoint", str(work / "checkpoint")]

    def command(self, *more: str) -> list[str]:
        """Returns the script and all of its arguments."""
        return [str(JOBS / self._script), *self._own, *more]

    def run(self) -> str:
        """Runs the job over the records that the topic contains now; returns its output."""
        command = [spark_submit(), *self._spark, *self.command(*AVAILABLE_NOW)]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_here(self, *more: str) -> str:
        """Runs the job in the tests' own Spark, which is faster than a new process.

        The job's tasks must not use functions of the script, because executors do not find its module.
        """
        main = importlib.import_module(self._script.removesuffix(".py")).main
        said, own = io.StringIO(), {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main([*self._own, *AVAILABLE_NOW, *more])
        finally:
            for number, handler in own.items():
                signal.signal(number, handler)
        assert code == 0, f"it ended with {code}: {said.getvalue()}"
        return said.getvalue()

    def kill_after_write(self, written: Callable[[], int], *more: str) -> int:
        """Kills the job (SIGKILL) when the sink has a batch that Spark has not committed; returns the batch's number.

        ``written`` returns the last batch in the sink, or -1.
        """
        command = [spark_submit(), *self._spark, *self.command(*more)]
        commits, log = self._work / "checkpoint" / "commits", self._work / "log"
        with log.open("wb") as said:
            running = subprocess.Popen(command, env=environment(), stdout=said, stderr=said)

        def committed() -> int:
            return max((int(each.name) for each in commits.glob("[0-9]*")), default=-1)

        deadline = time.monotonic() + TIMEOUT_S
        try:
            while True:
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                if written() > committed():
                    # A suspended job cannot commit, so a restart will find the same state.
                    os.kill(running.pid, signal.SIGSTOP)
                    batch = written()
                    if batch > committed():
                        return batch
                    os.kill(running.pid, signal.SIGCONT)
                time.sleep(CHECK_INTERVAL_S)
        finally:
            kill(running)


def family(*pids: int) -> dict[int, str]:
    """Returns the ids and command lines of those of the processes that live, and of all of their descendants."""
    told = subprocess.run(["ps", "-eww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [row.split(None, 3) for row in told.stdout.splitlines()]
    alive = {int(own): (int(parent), "".join(line)) for own, parent, state, *line in rows if state[0] != "Z"}
    found = [*pids]
    for each in found:  # the list grows in the loop
        found += [child for child, (parent, _) in alive.items() if parent == each and child not in found]
    return {each: alive[each][1] for each in found if each in alive}


def kill(running: subprocess.Popen[Any], *orphans: int) -> None:
    """Kills a process, known orphans and all of their descendants at once, like the loss of the machine."""
    processes = family(*([running.pid] if running.poll() is None else []), *orphans)
    # Suspended first, so that no process reacts to the death of another.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    running.wait()
