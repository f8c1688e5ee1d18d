"""A query of Spark's own ``format("kafka")`` in a separate process that a test can stop or kill."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.integration.job_process import TIMEOUT_S, environment, kill, spark_submit, suspend_after_write
from tests.integration.query_process import eventually

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
"""The directory with the jars of ``format("kafka")``; see ``test_same_rows``."""

SCRIPT = Path(__file__).parent / "run_jvm_query.py"


def last_number(directory: Path) -> int:
    """The highest batch in a log of Spark's, or -1."""
    return max((int(each.name) for each in directory.glob("[0-9]*") if each.name.isdecimal()), default=-1)


class JvmQuery:
    """A query, with one output and one checkpoint in ``work`` for all its runs.

    Args:
        sources: the options of each source.
        stateful: whether the query removes duplicates.
    """

    def __init__(self, work: Path, sources: list[dict[str, str]], stateful: bool = False) -> None:
        self.output, self.checkpoint = work / "output", work / "checkpoint"
        self._work = work
        self._settings = {
            "sources": sources,
            "output": str(self.output),
            "checkpoint": str(self.checkpoint),
            "stateful": stateful,
        }
        work.mkdir()

    def run(self) -> None:
        """Runs the query with ``availableNow``, to its end."""
        running = self._start(available_now=True)
        self._await_end(running)

    def run_and_stop(self, batch: int) -> None:
        """Runs the query until this batch is complete, and stops it."""
        running = self._start(available_now=False)
        try:
            eventually(lambda: running.poll() is not None or last_number(self.checkpoint / "commits") >= batch)
            (self._work / "stop").touch()
            self._await_end(running)
        finally:
            kill(running)

    def run_and_kill(self) -> int:
        """Kills the query with all its processes when the sink has a batch that Spark has not completed.

        Returns:
            The number of that batch.
        """
        running = self._start(available_now=False)
        try:
            return suspend_after_write(
                running,
                lambda: last_number(self.output / "_spark_metadata"),
                lambda: last_number(self.checkpoint / "commits"),
                self._work / "log",
            )
        finally:
            kill(running)

    def _start(self, available_now: bool) -> subprocess.Popen[bytes]:
        (self._work / "stop").unlink(missing_ok=True)
        (self._work / "settings.json").write_text(json.dumps({**self._settings, "available_now": available_now}))
        jars = ",".join(str(each) for each in sorted(Path(JARS).glob("*.jar")))
        with (self._work / "log").open("wb") as log:
            # spark-submit becomes the JVM, which can be suspended.
            return subprocess.Popen(
                [spark_submit(), "--master", "local[1]", "--jars", jars, str(SCRIPT), str(self._work)],
                env=environment(), stdout=log, stderr=log,
            )  # fmt: skip

    def _await_end(self, running: subprocess.Popen[bytes]) -> None:
        try:
            code = running.wait(TIMEOUT_S)
        finally:
            kill(running)
        assert code == 0, (self._work / "log").read_text()[-4000:]
