"""The process in which Spark runs a stream's reader: its shutdown, and the last lines that the driver's stderr gets."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_group_source.spark.jvm_process import JvmProcess
from spark_group_source.spark.runner_log import DriverStderr
from tests.unit.new_process import run_python
from tests.waiting import eventually

RUNNERS = """
import logging, os, signal, sys
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import driver
from spark_group_source.spark import stream
from spark_group_source.spark.application import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader

class LeavesSlowly:
    batch_in_flight = False
    def __init__(self, *args, **named): pass
    def pin_starts(self): pass
    def start(self, logged, **named): exec(start)
    def plan_batch(self, begin, max_offsets, max_bytes): return begin
    def await_assignment(self): pass
    def close(self, deadline, completed):
        print("leaves", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("has left", flush=True)

driver.Driver = LeavesSlowly
options = {"kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g", "subscribe": "t"}
for start, end in zip(sys.argv[1::2], sys.argv[2::2]):
    if not (child := os.fork()):
        reader = GroupStreamReader(parse_options(options), source_schema(False), Application("app"))
        try:
            reader.latestOffset({})
            exec(end)
        finally:
            reader.stop()
        sys.exit()
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
GONE = "raise EOFError"
TERMINATED = "os.kill(os.getpid(), signal.SIGTERM)"
HUNG_UP = "os.kill(os.getpid(), signal.SIGHUP)"
BROKEN_STDERR = """reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 2)
logging.getLogger('spark_group_source').warning('unread'); raise EOFError"""
CALLED = f"""
def terminate(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "stop":
        sys.setprofile(None)
        {TERMINATED}
sys.setprofile(terminate)
{GONE}"""
ENDS = {
    "sigterm": ("pass", TERMINATED, "0"),
    "sighup": ("pass", HUNG_UP, "0"),
    "sigterm as it joins": (TERMINATED, "pass", "0"),
    "the JVM is gone": ("pass", GONE, "1"),
    "sigterm as it begins to leave": ("pass", f"stream.ignore_further_signals = lambda: {TERMINATED}; {GONE}", None),
    "sigterm as Spark calls stop": ("pass", CALLED, "0"),
    "a broken stderr": ("pass", BROKEN_STDERR, None),
}


def test_a_runner_leaves_however_it_ends_and_ignores_sigterm_meanwhile() -> None:
    codes = [code for start, end, _ in ENDS.values() for code in (start, end)]
    ended = run_python(RUNNERS, *codes, env={**os.environ, "PYTHONUNBUFFERED": ""})
    lines = iter(ended.stdout.splitlines())
    for name, (_, _, status) in ENDS.items():
        assert [next(lines), next(lines)] == ["leaves", "has left"], (name, ended.stderr)
        left_with = next(lines).removeprefix("status ")
        assert status in (None, left_with), name
    assert "EOFError" in ended.stderr


def test_a_runner_ignores_the_hangup_that_nohup_ignores() -> None:
    nohup = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    ended = run_python(f"{nohup}\n{RUNNERS}", "pass", f"{HUNG_UP}; print('lives', flush=True)")
    assert ended.stdout.split("\n") == ["lives", "leaves", "has left", "status 0", ""], ended.stderr


JVM = """
import ctypes, sys, threading
def shutdown():
    ctypes.CDLL(None).prctl(15, b"shutdown-hook-0")
    print("shuts down", flush=True)
    threading.Event().wait()
hook = threading.Thread(target=shutdown, daemon=True)
"""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the threads of a process")


@LINUX
def test_the_shutdown_of_a_jvm_is_seen_by_its_thread_and_no_other_thread_is_taken_for_it() -> None:
    code = f"{JVM}\nprint('lives', flush=True); sys.stdin.readline()"
    code += "; other = threading.Thread(target=sys.stdin.readline); other.start(); other.join()"
    code += "; hook.start(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        jvm = JvmProcess(started.pid)
        assert started.stdout.readline() == "lives\n"
        assert not jvm.has_begun_shutdown()
        started.stdin.write("\n")
        eventually(lambda: not jvm.has_begun_shutdown() and len(jvm._named) == 2)
        started.stdin.write("\n")
        assert started.stdout.readline() == "shuts down\n"
        eventually(jvm.has_begun_shutdown)
        assert jvm.has_begun_shutdown(), "it stays so"


@LINUX
def test_a_runner_leaves_when_its_jvm_begins_to_shut_down_and_ends_after_it() -> None:
    """If it ended before, a query would fail while the JVM shuts down, and the user's listeners would hear of it."""
    jvm = f"{JVM}\nimport os; told, telling = os.pipe()"
    jvm += "\nthreading.Thread(target=lambda: os.read(told, 1) and hook.start(), daemon=True).start()"
    waits = "from spark_group_source.spark.jvm_process import JvmProcess\n"
    waits += "JvmProcess.await_end = lambda self: print('waits', flush=True)"
    ended = run_python(f"{jvm}\n{RUNNERS}", waits, "import time; os.write(telling, b'.'); time.sleep(60)")
    assert ended.stdout.split("\n") == ["shuts down", "leaves", "has left", "waits", "status 0", ""], ended.stderr


PROC = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the JVM's stderr is opened through /proc")
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


@PROC
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


@PROC
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


@PROC
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
