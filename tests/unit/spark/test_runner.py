"""Shutdown of the process in which Spark runs a stream's reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RUNNER = """
import logging, os, signal
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import driver
from spark_group_source.spark import stream
from spark_group_source.spark.tasks import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader

class LeavesSlowly:
    def __init__(self, *args, **named): pass
    def pin_starts(self): pass
    def start(self, logged, **named): START
    def plan_batch(self, begin, max_offsets, max_bytes): return begin
    def await_assignment(self): pass
    def close(self):
        print("leaves", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("has left", flush=True)

driver.Driver = LeavesSlowly
options = {"kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g", "subscribe": "t"}
reader = GroupStreamReader(parse_options(options), source_schema(False), Application("app"))
try:
    reader.latestOffset({})
    END
finally:
    reader.stop()
"""


LEFT = ["leaves", "has left", ""]
TERMINATED = "os.kill(os.getpid(), signal.SIGTERM)"


def run(end: str, start: str = "pass") -> subprocess.CompletedProcess[str]:
    """Runs a runner that ends this way, and gets a second SIGTERM while it leaves the group."""
    script = RUNNER.replace("END", end).replace("START", start)
    root = Path(__file__).parents[3]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=buffered, capture_output=True, text=True, timeout=90, check=False
    )


def test_a_runner_leaves_on_sigterm_and_ignores_the_second_sigterm() -> None:
    ended = run(TERMINATED)
    assert (ended.stdout.split("\n"), ended.returncode) == (LEFT, 0), ended.stderr


def test_a_runner_whose_jvm_closed_the_socket_leaves_although_it_also_notices_the_death_of_its_parent() -> None:
    ended = run("raise EOFError")
    assert ended.stdout.split("\n") == LEFT, ended.stderr
    assert "EOFError" in ended.stderr


def test_a_runner_that_gets_sigterm_as_it_begins_to_leave_still_leaves() -> None:
    ended = run(f"stream.ignore_further_signals = lambda: {TERMINATED}; raise EOFError")
    assert ended.stdout.split("\n") == LEFT, ended.stderr


def test_a_runner_that_gets_sigterm_while_its_member_begins_to_join_leaves() -> None:
    ended = run("pass", start=TERMINATED)
    assert (ended.stdout.split("\n"), ended.returncode) == (LEFT, 0), ended.stderr


def test_a_runner_with_a_closed_stderr_leaves() -> None:
    closed = "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 2)"
    ended = run(f"{closed}; logging.getLogger('spark_group_source').warning('unread'); raise EOFError")
    assert ended.stdout.split("\n") == LEFT
