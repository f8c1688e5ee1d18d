"""The log of the process that runs the reader of a stream or plans a batch query: lines that outlive its own stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_group_source.clock import Deadline
from spark_group_source.wire.waiting import wait_ready

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 cannot subscript it

PROC = Path("/proc")

WRITE_TIMEOUT = 1.0
"""How long a write waits for a full pipe, in seconds. After that time the pipe is abandoned, because a query must end
even if no process reads its driver's output."""


class DriverStderr:
    """A stream to the stderr of the JVM that started this process. ``descriptors`` is empty if it cannot be opened.

    It opens the JVM's stderr a second time, so it outlives the JVM. But if stderr is a file that was not opened for
    appending (``2> log``), the JVM has its own position in the file and overwrites lines that are appended here. In
    that case the pipe of a ``pyspark.daemon`` is tried first, which the JVM copies to its stderr while it is alive.
    """

    def __init__(self, jvm: int) -> None:
        self.descriptors: list[int] = []
        jvm_stderr = _open_stderr(jvm)
        if jvm_stderr is None or _overwritten(jvm):
            pipe = _open_pipe_of_daemon(jvm)
            if pipe is not None:
                self.descriptors.append(pipe)
        if jvm_stderr is not None:
            self.descriptors.append(jvm_stderr)

    def write(self, text: str) -> None:
        """Writes to the first descriptor that accepts the text."""
        data = text.encode(errors="backslashreplace")
        for descriptor in list(self.descriptors):
            data = _write(descriptor, data)
            if not data:
                return
            self.descriptors.remove(descriptor)
            os.close(descriptor)

    def flush(self) -> None:
        """Does nothing: writes are not buffered."""


def _write(descriptor: int, data: bytes) -> bytes:
    """Writes to a pipe or file; returns the data that it does not accept in time."""
    with contextlib.suppress(OSError):
        while data:
            if not wait_ready(descriptor, Deadline.after(WRITE_TIMEOUT), select.POLLOUT):
                break
            written = os.write(descriptor, data)
            data = data[written:]
    return data


def _open_pipe_of_daemon(jvm: int) -> int | None:
    """Opens the stderr of the first ``pyspark.daemon`` of this JVM that has one."""
    for daemon in _daemons(jvm):
        pipe = _open_stderr(daemon)
        if pipe is not None:
            return pipe
    return None


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
    with contextlib.suppress(OSError, ValueError):
        mode = (PROC / f"{jvm}/fd/2").stat().st_mode
        if not stat.S_ISREG(mode):
            return False
        for line in (PROC / f"{jvm}/fdinfo/2").read_text().splitlines():
            if line.startswith("flags:"):
                flags = int(line.removeprefix("flags:"), 8)
                appends = bool(flags & os.O_APPEND)
                return not appends
    return False


def _daemons(jvm: int) -> Iterator[int]:
    """The processes that start the JVM's Python workers."""
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # the process may end at any time
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != jvm:
                continue
            if b"\0pyspark.daemon\0" in (process / "cmdline").read_bytes():
                yield int(process.name)


LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TIME_FORMAT = "%y/%m/%d %H:%M:%S"
"""As in Spark's own log."""


def log_to_stderr() -> None:
    """Logs this package to stderr at ``INFO``, unless logging is configured. Spark configures no logging in this
    process."""
    log_package(StderrHandler, logging.INFO)


def log_package(create_handler: Callable[[], logging.Handler], level: int) -> None:
    """Logs this package at ``level`` and above, in lines like Spark's, unless logging is configured in this process."""
    package = logging.getLogger("spark_group_source")
    is_configured = package.handlers or logging.getLogger().handlers
    if is_configured:
        return
    handler = create_handler()
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    package.addHandler(handler)
    package.setLevel(level)


class StderrHandler(_StreamHandler):
    """Writes to the stderr of this process, a pipe that the JVM copies to its own stderr.

    ``Process.destroy()`` in the JVM sends SIGTERM and closes its end of that pipe at once, so the last lines of a query
    would be lost. They go to the driver's stderr, which is opened at the start, because that is impossible once the JVM
    is dead.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._driver_stderr = DriverStderr(os.getppid())

    def bypass_pipe(self) -> None:
        """Writes to the driver's stderr from now on."""
        if self._driver_stderr.descriptors:
            # Not setStream(): it waits for a thread that is writing to the pipe, and fails if the pipe is closed.
            self.stream = self._driver_stderr
