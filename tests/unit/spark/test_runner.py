"""The end of the process in which Spark runs a stream's reader."""

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
from spark_group_source.spark.input_partitions import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader

class LeavesSlowly:
    def __init__(self, *args, **named): pass
    def decide_start(self): pass
    def start(self, logged, **named): START
    def latest(self, begin, limit): return begin
    def await_share(self): pass
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
    """A runner that ends so, with SIGTERM once more while it leaves the group."""
    script = RUNNER.replace("END", end).replace("START", start)
    root = Path(__file__).parents[3]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=buffered, capture_output=True, text=True, timeout=90, check=False
    )


def test_a_runner_that_is_told_to_end_leaves_and_is_told_again_in_vain() -> None:
    ended = run(TERMINATED)
    assert (ended.stdout.split("\n"), ended.returncode) == (LEFT, 0), ended.stderr


def test_a_runner_whose_jvm_closed_the_socket_leaves_though_its_parents_death_is_seen_meanwhile() -> None:
    ended = run("raise EOFError")
    assert ended.stdout.split("\n") == LEFT, ended.stderr
    assert "EOFError" in ended.stderr


def test_a_runner_that_is_told_to_end_as_it_begins_to_leave_still_leaves() -> None:
    ended = run(f"stream.finish_leaving = lambda: {TERMINATED}; raise EOFError")
    assert ended.stdout.split("\n") == LEFT, ended.stderr


def test_a_runner_that_is_told_to_end_while_its_member_begins_to_join_leaves() -> None:
    ended = run("pass", start=TERMINATED)
    assert (ended.stdout.split("\n"), ended.returncode) == (LEFT, 0), ended.stderr


def test_a_runner_whose_stderr_is_closed_leaves() -> None:
    closed = "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 2)"
    ended = run(f"{closed}; logging.getLogger('spark_group_source').warning('unread'); raise EOFError")
    assert ended.stdout.split("\n") == LEFT
