"""The shutdown of the process in which Spark runs a stream's reader."""

from __future__ import annotations

import logging
import os
import signal
import threading

from spark_group_source.spark.runner_log import StderrHandler

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

    A JVM that dies also closes the runner's socket, so the runner may be leaving when it detects that its parent died.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for handler in logging.getLogger("spark_group_source").handlers:
        if isinstance(handler, StderrHandler):
            handler.bypass_pipe()


def _leave_when_orphaned(parent: int) -> None:
    """Sends SIGTERM to this process when its parent dies.

    A killed JVM sends no signal, and the reader does not see the closed socket during a call that waits.
    """
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(PARENT_CHECK_INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)
