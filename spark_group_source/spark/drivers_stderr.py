"""The driver's stderr, for lines that a process writes when the JVM no longer reads its own. Linux only."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.wire.waiting import wait_ready

PROC = Path("/proc")

LONGEST = 1.0
"""Seconds that a line waits for a pipe that is full. Then that way is given up: a query must end, also if nobody reads
what its driver says."""


class DriversStderr:
    """A stream to the stderr of the JVM that started this process; ``ways`` is empty where there is none.

    The JVM's stderr is opened a second time, so it outlives the JVM. But if it is a file that was not opened for
    appending (``2> log``), the JVM has a position of its own in it and writes over what is appended here. Then the
    first way is the pipe of a ``pyspark.daemon``, which the JVM copies to its stderr for as long as it lives.
    """

    def __init__(self, jvm: int) -> None:
        own = _open_stderr(jvm)
        pipes = map(_open_stderr, _daemons(jvm)) if own is None or _overwritten(jvm) else iter(())
        pipe = next((each for each in pipes if each is not None), None)
        self.ways = [each for each in (pipe, own) if each is not None]

    def write(self, text: str) -> None:
        """Writes at once, by the first way that takes it."""
        data = text.encode(errors="backslashreplace")
        for way in list(self.ways):
            with contextlib.suppress(OSError):
                while data and wait_ready(way, Deadline.after(LONGEST), select.POLLOUT):
                    data = data[os.write(way, data) :]
            if not data:
                return
            self.ways.remove(way)
            os.close(way)

    def flush(self) -> None:
        """Nothing is kept back."""


def _open_stderr(process: int) -> int | None:
    """The stderr of another process of this user; ``None`` for a socket, for a named pipe that nobody reads, and where
    there is no ``/proc``."""
    try:
        # Non-blocking for this process alone: to open such a pipe would wait for a reader.
        return os.open(PROC / f"{process}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None


def _overwritten(jvm: int) -> bool:
    """Whether the JVM's stderr is a file that it does not append to."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        info = (PROC / f"{jvm}/fdinfo/2").read_text().splitlines()
        flags = int(next(line.split()[1] for line in info if line.startswith("flags:")), 8)
        return stat.S_ISREG((PROC / f"{jvm}/fd/2").stat().st_mode) and not flags & os.O_APPEND
    return False


def _daemons(jvm: int) -> Iterator[int]:
    """The processes that start the JVM's Python workers."""
    for each in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it may end meanwhile
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == jvm and b"\0pyspark.daemon\0" in (each / "cmdline").read_bytes():
                yield int(each.name)
