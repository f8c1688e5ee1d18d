"""The driver's stderr takes the last lines of a query, and never holds the query up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_group_source.spark.drivers_stderr import DriversStderr

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the JVM's stderr is opened through /proc")

LONG = 30.0
LINES = ["x" * 1000 + "\n"] * 100


@contextmanager
def jvm(stderr: int) -> Iterator[int]:
    """The id of a process with this stderr."""
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=stderr)
    try:
        yield sleeping.pid
    finally:
        sleeping.communicate(b"\n")


def returns(call: object) -> bool:
    """Whether a call returns, also with an error."""
    thread = threading.Thread(target=call, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


def test_a_named_pipe_that_nobody_reads_is_no_way_and_does_not_block_the_start_of_a_query(tmp_path: Path) -> None:
    fifo = tmp_path / "stderr"
    os.mkfifo(fifo)
    reading, writing = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), os.open(fifo, os.O_WRONLY)
    found: list[DriversStderr] = []
    with jvm(writing) as process:
        os.close(writing)
        os.close(reading)
        assert returns(lambda: found.append(DriversStderr(process)))
    assert found[0].ways == []


def test_a_pipe_that_is_full_loses_lines_and_does_not_block_the_end_of_a_query() -> None:
    reading, writing = os.pipe()
    with jvm(writing) as process:
        stderr = DriversStderr(process)
        assert returns(lambda: stderr.write("".join(LINES)))
    os.close(writing)
    for way in stderr.ways:
        os.close(way)
    with open(reading) as pipe:
        assert pipe.read().startswith(LINES[0])


def test_a_long_text_arrives_whole_at_a_reader_that_is_slow() -> None:
    reading, writing = os.pipe()
    with jvm(writing) as process:
        stderr = DriversStderr(process)
        os.close(writing)
        text = "".join(LINES * 3)  # more than a pipe holds
        told = threading.Thread(target=stderr.write, args=(text,), daemon=True)
        told.start()
        found = b""
        while len(found) < len(text):
            found += os.read(reading, 4096)
        told.join(LONG)
    assert found.decode() == text
    os.close(reading)
