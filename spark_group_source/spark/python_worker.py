"""Makes Spark's Python worker begin its next task sooner. The first task of a worker does this for all later tasks.

After a task, a worker collects garbage and then reads the next task from its socket.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import sys
import threading
from types import CodeType

_FULL_COLLECTION = 2
_DAEMON = os.path.join("pyspark", "daemon.py")
_TCP_OPTIONS = [socket.TCP_NODELAY, *([socket.TCP_QUICKACK] if hasattr(socket, "TCP_QUICKACK") else [])]


@functools.cache
def prepare_for_next_task() -> None:
    """Call this at the end of each task, when the task has imported all its modules."""
    worker_socket = _worker_socket()
    if worker_socket is None:
        return
    gc.callbacks.append(functools.partial(_set_quickack, worker_socket))
    gc.callbacks.append(_freeze)  # last, because it removes itself from the list


def _worker_socket() -> socket.socket | None:
    """The socket between Spark and this worker, which PySpark's daemon holds; ``None`` in a process without a daemon.

    This is the daemon's own object. A second object for the same descriptor would close the descriptor when freed,
    and would make it non-blocking if a library has set a default timeout.
    """
    main_thread = threading.main_thread().ident
    if main_thread is None:
        return None
    frame = sys._current_frames().get(main_thread)
    while frame is not None:
        if _is_worker_function(frame.f_code):
            held = frame.f_locals.get("sock")
            return held if isinstance(held, socket.socket) else None
        frame = frame.f_back
    return None


def _is_worker_function(code: CodeType) -> bool:
    """Whether this is ``worker()`` of PySpark's daemon."""
    return code.co_name == "worker" and code.co_filename.endswith(_DAEMON)


def _has_ended_full_collection(phase: str, info: dict[str, int]) -> bool:
    return phase == "stop" and info["generation"] == _FULL_COLLECTION


def _freeze(phase: str, info: dict[str, int]) -> None:
    """Excludes the objects that exist now from later collections, which saves 10 to 15 ms per task.

    The collection between two tasks visits every object of every module and frees none. Garbage must not be frozen, so
    this function runs after the first such collection. A collection of its own would delay the first batch of a query
    by 70 ms.
    """
    if _has_ended_full_collection(phase, info):
        gc.freeze()
        gc.callbacks.remove(_freeze)


def _set_quickack(worker_socket: socket.socket, phase: str, info: dict[str, int]) -> None:
    """Avoids a delay of 40 ms for small packets between Spark and this worker on Linux.

    Spark sends a task in two writes without TCP_NODELAY. The second write waits until the worker acknowledges the
    first, and Linux delays the acknowledgement because the worker has no data to send. TCP_QUICKACK lasts until the
    worker sends again, so each task needs it again. Between two tasks, only the callbacks of the garbage collection
    run. TCP_NODELAY does the same for the worker's own last packet. Spark's state server had the same delay:
    https://github.com/apache/spark/pull/50460. Unix sockets (``spark.python.unix.domain.socket.enabled``) do not have
    it.
    """
    if not _has_ended_full_collection(phase, info):
        return
    for option in _TCP_OPTIONS:
        with contextlib.suppress(OSError):  # not TCP, or closed
            worker_socket.setsockopt(socket.IPPROTO_TCP, option, 1)
