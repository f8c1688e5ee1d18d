"""The process in which Spark runs a stream's reader, or plans a read: its log, and its end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from spark_group_source.spark.drivers_stderr import DriversStderr

if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 cannot subscript it

ORPHAN_LOOK_S = 1.0
"""Seconds between two looks whether the JVM is still there."""


def leave_on_sigterm() -> None:
    """Spark ends the runner with SIGTERM, twice: the first ends it in order, so that stop() is called.

    The death of the JVM does the same. SIGINT is left to the driver: a terminal sends it to all processes, and a reader
    that it ended would be the query's failure.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def end(signum: int, frame: object) -> None:
        finish_leaving()
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_when_orphaned, args=(os.getppid(),), name="orphan-watch", daemon=True).start()


def finish_leaving() -> None:
    """From here on SIGTERM is ignored, and the log goes to the driver's stderr itself.

    A JVM that dies closes the runner's socket, too: the runner may be leaving already when its parent's death is seen.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for handler in logging.getLogger("spark_group_source").handlers:
        if isinstance(handler, _Console):
            handler.leave_pipe()


def _leave_when_orphaned(parent: int) -> None:
    """A JVM that is killed sends nothing, and nobody sees the end of its socket while a call waits."""
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(ORPHAN_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def log_to_stderr() -> None:
    """The runner's logging is not set up, and its stderr is the driver's: rebalances must be seen there."""
    package = logging.getLogger("spark_group_source")
    if package.handlers or logging.getLogger().handlers:
        return
    handler = _Console()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


class _Console(_StreamHandler):
    """Writes to this process' stderr, a pipe that the JVM copies to its own stderr.

    ``Process.destroy()`` in the JVM sends SIGTERM and closes its end of that pipe at once, so the last lines of a query
    would be lost. They go another way, which is opened at the start: a dead JVM has none.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._last = DriversStderr(os.getppid())

    def leave_pipe(self) -> None:
        """Writes past the pipe from here on."""
        if self._last.ways:
            # Not by setStream(): it waits for a thread that is writing to the pipe, and fails if the pipe is closed.
            self.stream = self._last
