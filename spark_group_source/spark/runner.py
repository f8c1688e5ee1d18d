"""Log and shutdown of the process in which Spark runs a stream's reader, or plans a batch read."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from spark_group_source.spark.driver_stderr import DriverStderr

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 cannot subscript it

PARENT_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the JVM is alive."""


def leave_on_sigterm() -> None:
    """Makes SIGTERM, and the end of the JVM, call the reader's ``stop()``. Spark sends SIGTERM twice.

    The process ignores SIGINT: a terminal sends it to all processes, and a reader that ended would fail the query.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def end(signum: int, frame: object) -> None:
        ignore_further_signals()
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_when_orphaned, args=(os.getppid(),), name="orphan-watch", daemon=True).start()


def ignore_further_signals() -> None:
    """Ignores SIGTERM from now on, and writes the log directly to the driver's stderr.

    A JVM that dies also closes the runner's socket, so the runner may be leaving when it notices that its parent died.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for handler in logging.getLogger("spark_group_source").handlers:
        if isinstance(handler, _StderrHandler):
            handler.bypass_pipe()


def _leave_when_orphaned(parent: int) -> None:
    """Sends SIGTERM to this process when its parent dies.

    A killed JVM sends no signal, and the reader does not notice the closed socket during a call that waits.
    """
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(PARENT_CHECK_INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)


def log_to_stderr() -> None:
    """Logs this package to stderr at ``INFO``, unless logging is configured: Spark configures none in this process."""
    package = logging.getLogger("spark_group_source")
    if package.handlers or logging.getLogger().handlers:
        return
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


class _StderrHandler(_StreamHandler):
    """Writes to the stderr of this process, a pipe that the JVM copies to its own stderr.

    ``Process.destroy()`` in the JVM sends SIGTERM and closes its end of that pipe at once, so the last lines of a query
    would be lost. They go to the driver's stderr, which is opened at the start because a dead JVM has none.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._driver_stderr = DriverStderr(os.getppid())

    def bypass_pipe(self) -> None:
        """Writes to the driver's stderr from now on."""
        if self._driver_stderr.descriptors:
            # Not setStream(): it waits for a thread that is writing to the pipe, and fails if the pipe is closed.
            self.stream = self._driver_stderr
