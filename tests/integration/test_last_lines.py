"""The last lines of a query's log arrive on the driver's stderr, however the query ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import environment, kill
from tests.integration.query_process import eventually

SCRIPT = Path(__file__).parent / "run_endings.py"
ENDINGS = {"available-now", "failed", "stopped", "interrupted"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the driver's stderr is found in /proc")
def test_a_query_that_ends_writes_its_last_log_lines_to_the_drivers_stderr(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    name = topic()
    kafka.produce(name, ["value"])
    log = tmp_path / "stderr"

    def said(line: str) -> set[str]:
        return set(re.findall(rf"group {group}-([a-z-]+): {line}", log.read_text(errors="replace")))

    command = [sys.executable, str(SCRIPT), kafka.bootstrap_servers, name, group]
    with log.open("wb") as stderr:
        running = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n", log.read_text()
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        eventually(lambda: said("the query has ended: batches") == ENDINGS, 60, "the last line of each query")
        assert said(r"member \S+ left\n") == ENDINGS, log.read_text()
    finally:
        kill(running)
        assert running.stdout is not None
        running.stdout.close()
