"""The shutdown of the process in which Spark runs a stream's reader."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable

from spark_group_source.spark.jvm_process import JvmProcess
from spark_group_source.spark.runner_log import StderrHandler

JVM_CHECK_INTERVAL = 0.1
"""Seconds between two checks of the JVM. If the JVM is process 1 of a container, this process dies a few tenths of a
second after the JVM has begun to shut down."""

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""A terminal that closes, and a dropped ssh, send SIGHUP to all processes of the application."""


def leave_when_told(jvm: JvmProcess, stop_at_exit: Callable[[], None]) -> None:
    """Makes SIGTERM, SIGHUP and the shutdown of the JVM call the reader's ``stop()``. Spark sends SIGTERM twice.

    A signal ends the process by an exception, and Spark calls ``stop()`` whatever exception ends its loop. If the JVM
    dies, that call and a signal may come at the same time: the exception is then raised before the first line of
    ``stop()``. The exit of the process therefore leaves the group too.

    The process ignores SIGINT, because a terminal sends it to all processes, and the end of the reader would fail the
    query.

    Args:
        stop_at_exit: leaves the group, unless ``stop()`` has done so.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def end(signum: int, frame: object) -> None:
        ignore_further_signals()
        raise SystemExit(0)

    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP for all processes
            signal.signal(number, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(stop_at_exit)
    threading.Thread(target=_watch, args=(jvm,), name="jvm-watch", daemon=True).start()


def ignore_further_signals() -> None:
    """Ignores signals from now on, and writes the log directly to the driver's stderr.

    A JVM that dies also closes the runner's socket, so the runner may be leaving when it detects that its parent died.
    """
    if threading.current_thread() is threading.main_thread():
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    for handler in logging.getLogger("spark_group_source").handlers:
        if isinstance(handler, StderrHandler):
            handler.bypass_pipe()


def leave_now() -> None:
    """Makes the main thread leave the group as SIGTERM does, even while it waits. Caller: any thread."""
    os.kill(os.getpid(), signal.SIGTERM)


def _watch(jvm: JvmProcess) -> None:
    """Leaves the group when the JVM begins to shut down, or has died.

    A killed JVM sends no signal, and the reader does not notice the closed socket while a call waits. A JVM that shuts
    down sends nothing to an idle query.
    """
    never = threading.Event()
    while not jvm.has_ended() and not jvm.has_begun_shutdown():
        never.wait(JVM_CHECK_INTERVAL)
    leave_now()
