"""The driver's stderr receives the last lines of a query, and never delays the query."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_group_source.spark.runner import DriverStderr

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
    """Whether a call returns or raises in time."""
    thread = threading.Thread(target=call, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


def test_a_named_pipe_without_a_reader_is_not_used_and_does_not_block_the_start_of_a_query(tmp_path: Path) -> None:
    fifo = tmp_path / "stderr"
    os.mkfifo(fifo)
    reading, writing = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), os.open(fifo, os.O_WRONLY)
    opened: list[DriverStderr] = []
    with jvm(writing) as process:
        os.close(writing)
        os.close(reading)
        assert returns(lambda: opened.append(DriverStderr(process)))
    assert opened[0].descriptors == []


def test_a_full_pipe_loses_lines_and_does_not_block_the_end_of_a_query() -> None:
    reading, writing = os.pipe()
    with jvm(writing) as process:
        stderr = DriverStderr(process)
        assert returns(lambda: stderr.write("".join(LINES)))
    os.close(writing)
    for descriptor in stderr.descriptors:
        os.close(descriptor)
    with open(reading) as pipe:
        assert pipe.read().startswith(LINES[0])


def test_a_slow_reader_receives_the_whole_of_a_long_text() -> None:
    reading, writing = os.pipe()
    with jvm(writing) as process:
        stderr = DriverStderr(process)
        os.close(writing)
        text = "".join(LINES * 3)  # more than a pipe holds
        writer = threading.Thread(target=stderr.write, args=(text,), daemon=True)
        writer.start()
        received = b""
        while len(received) < len(text):
            received += os.read(reading, 4096)
        writer.join(LONG)
    assert received.decode() == text
    os.close(reading)
