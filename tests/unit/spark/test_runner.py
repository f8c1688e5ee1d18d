"""The end of the process in which Spark runs a stream's reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNNER = """
import os, signal
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import driver
from spark_group_source.spark.input_partitions import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader

class LeavesSlowly:
    def __init__(self, *args, **named): pass
    def decide_start(self): pass
    def start(self, logged, **named): pass
    def latest(self, begin, limit): return begin
    def await_share(self): pass
    def close(self):
        print("leaves", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("has left", flush=True)

driver.Driver = LeavesSlowly
options = {"kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g", "subscribe": "t"}
reader = GroupStreamReader(parse_options(options), source_schema(False), Application("app"))
reader.latestOffset({})
try:
    END
finally:
    reader.stop()
"""


def run(end: str) -> subprocess.CompletedProcess[str]:
    """A runner that ends so, with SIGTERM once more while it leaves the group."""
    script = RUNNER.replace("END", end)
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=90, check=False
    )


def test_a_runner_that_is_told_to_end_leaves_and_is_told_again_in_vain() -> None:
    ended = run("os.kill(os.getpid(), signal.SIGTERM)")
    assert (ended.stdout.split("\n"), ended.returncode) == (["leaves", "has left", ""], 0), ended.stderr


def test_a_runner_whose_jvm_closed_the_socket_leaves_though_its_parents_death_is_seen_meanwhile() -> None:
    ended = run("raise EOFError")
    assert ended.stdout.split("\n") == ["leaves", "has left", ""], ended.stderr
    assert "EOFError" in ended.stderr
