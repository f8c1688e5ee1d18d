"""The driver's stderr, for lines that a process writes after the JVM stopped reading its pipe. Linux only."""

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

WRITE_TIMEOUT = 1.0
"""How long a write waits for a full pipe, in seconds. Then that pipe is abandoned: a query must end even if no process
reads its driver's output."""


class DriverStderr:
    """A stream to the stderr of the JVM that started this process; ``descriptors`` is empty if there is none.

    It opens the JVM's stderr a second time, so it outlives the JVM. But if that is a file that was not opened for
    appending (``2> log``), the JVM has its own position in the file and overwrites lines that are appended here. Then
    the pipe of a ``pyspark.daemon`` comes first, which the JVM copies to its stderr while it is alive.
    """

    def __init__(self, jvm: int) -> None:
        jvm_stderr = _open_stderr(jvm)
        pipes = map(_open_stderr, _daemons(jvm)) if jvm_stderr is None or _overwritten(jvm) else iter(())
        pipe = next((each for each in pipes if each is not None), None)
        self.descriptors = [each for each in (pipe, jvm_stderr) if each is not None]

    def write(self, text: str) -> None:
        """Writes to the first descriptor that accepts the text."""
        data = text.encode(errors="backslashreplace")
        for descriptor in list(self.descriptors):
            with contextlib.suppress(OSError):
                while data and wait_ready(descriptor, Deadline.after(WRITE_TIMEOUT), select.POLLOUT):
                    data = data[os.write(descriptor, data) :]
            if not data:
                return
            self.descriptors.remove(descriptor)
            os.close(descriptor)

    def flush(self) -> None:
        """Does nothing: writes are not buffered."""


def _open_stderr(process: int) -> int | None:
    """Opens the stderr of another process of this user.

    ``None`` for a socket, for a named pipe without a reader, and without ``/proc``.
    """
    try:
        # Non-blocking, for this process only: otherwise opening a named pipe waits for a reader.
        return os.open(PROC / f"{process}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None


def _overwritten(jvm: int) -> bool:
    """Whether the JVM's stderr is a file that the JVM does not append to."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        info = (PROC / f"{jvm}/fdinfo/2").read_text().splitlines()
        flags = int(next(line.split()[1] for line in info if line.startswith("flags:")), 8)
        return stat.S_ISREG((PROC / f"{jvm}/fd/2").stat().st_mode) and not flags & os.O_APPEND
    return False


def _daemons(jvm: int) -> Iterator[int]:
    """The processes that start the JVM's Python workers."""
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # the process may end at any time
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == jvm and b"\0pyspark.daemon\0" in (process / "cmdline").read_bytes():
                yield int(process.name)
