"""Spark's Python worker between two tasks: what makes the next one begin sooner. Both are done once, by the first task.

A worker that has ended a task collects garbage, and then reads the next task from its socket.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import sys
import threading

_FULL_COLLECTION = 2
_DAEMON = os.path.join("pyspark", "daemon.py")
_HURRIED = [socket.TCP_NODELAY, *([socket.TCP_QUICKACK] if hasattr(socket, "TCP_QUICKACK") else [])]


@functools.cache
def ready_for_the_next_task() -> None:
    """To be called at the end of each task, when everything that it uses has been imported.

    The collection between tasks goes through every object of every module to find none to free. What is there by now
    stays: it is left out from then on, 10 to 15 ms a task less. Garbage would stay as well, so it is freed before.
    """
    gc.collect()
    gc.freeze()
    if sparks := _sparks_socket():
        gc.callbacks.append(functools.partial(_hurry, sparks))


def _sparks_socket() -> socket.socket | None:
    """The socket between Spark and this worker, which PySpark's daemon holds; None in a process without a daemon.

    The daemon's own object is used. A second object for the same descriptor would close it with its own end, and would
    make it non-blocking if a library has set a default timeout.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame and not (frame.f_code.co_name == "worker" and frame.f_code.co_filename.endswith(_DAEMON)):
        frame = frame.f_back
    found = frame.f_locals.get("sock") if frame else None
    return found if isinstance(found, socket.socket) else None


def _hurry(sparks: socket.socket, phase: str, info: dict[str, int]) -> None:
    """Keeps the kernel from holding small packets back between Spark and this worker, 40 ms each time on Linux.

    Spark sends a task in two writes without TCP_NODELAY. The second one waits until the first is acknowledged, and
    Linux, as the worker has nothing to send, waits with that. TCP_QUICKACK lasts until the worker sends again, so
    it has to be set again between tasks, where nothing of a source runs but what the collection calls. The worker's
    own last packet waits in the same way for Spark to acknowledge the one before. Spark met this with its state
    server: https://github.com/apache/spark/pull/50460. Unix domain sockets, which
    ``spark.python.unix.domain.socket.enabled`` turns on, do not need it.
    """
    if phase != "stop" or info["generation"] != _FULL_COLLECTION:
        return
    for option in _HURRIED:
        with contextlib.suppress(OSError):  # no TCP, or closed by now
            sparks.setsockopt(socket.IPPROTO_TCP, option, 1)
