"""Sets up the reports of completed batches: one server in the user's process, one listener in Spark's JVM.

Spark notifies a reader that a batch is complete only when Spark plans the next batch: with a ``processingTime`` of ten
minutes, ten minutes later. A query listener (:mod:`.listener`) learns of the completion at once, after Spark has
written its commit log. A server (:mod:`.server`) reports the completion to the readers.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from spark_group_source.spark.notifications.client import ServerAddress
from spark_group_source.spark.notifications.default_signals import leave_before_death
from spark_group_source.spark.notifications.listener import CompletionListener
from spark_group_source.spark.notifications.messages import Rejection
from spark_group_source.spark.notifications.server import NotificationServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_lock = threading.Lock()
_servers: list[NotificationServer] = []
_listeners: list[CompletionListener] = []
"""The server of this process and the listener of its application. ``_lock`` guards both."""


def report_completed_batches(spark: SparkSession) -> ServerAddress:
    """Starts the reports of completed batches for the queries of a session; returns the server's address for readers.

    No reports are possible under Spark Connect, whose server runs elsewhere, or on systems without Unix sockets. There,
    the source commits a batch when Spark plans the next one.
    """
    try:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is None:
            return ServerAddress(missing="this process has no Spark driver, as with Spark Connect")
        streams = spark._jsparkSession.streams()
        with _lock:
            server, address = _server()
            if server is not None:
                _end_with_process(server, gateway)
            if not _listeners or _has_ended(_listeners[-1]):
                _replace_listener(CompletionListener(server, spark.sparkContext._jsc.sc(), gateway.jvm))
            _listeners[-1].server = server
            _listeners[-1].listen(streams)
        return address
    except Exception as error:  # other kinds of sessions and JVMs lack parts of this, and queries work without it
        log.info("cannot report completed batches, because this session offers no listener: %r", error)
        return ServerAddress(missing=f"this session offers no listener for completed batches: {error!r}")


def _server() -> tuple[NotificationServer | None, ServerAddress]:
    """The server of this process, or ``None`` if it cannot be created, and its address. Sessions share it."""
    is_forked_child = _servers and _servers[-1].process != os.getpid()
    if is_forked_child:
        _servers.clear()  # the threads exist only in the parent
        _listeners.clear()
    if _servers:
        return _servers[-1], ServerAddress(_servers[-1].path)
    if not hasattr(socket, "AF_UNIX"):
        return None, ServerAddress(missing="Python has no Unix sockets on this system")
    try:
        server = NotificationServer(_drain, _rejection, _attend)
    except OSError as error:
        return None, ServerAddress(missing=f"cannot report completed batches: {error}")
    _servers.append(server)
    atexit.register(server.close)
    return server, ServerAddress(server.path)


def _end_with_process(server: NotificationServer, gateway: Any) -> None:
    """Makes the readers leave before this process ends, if Spark's JVM ends with it because it has started the JVM.

    A JVM that this process has not started, such as that of a notebook server, may continue its queries without this
    process.
    """
    started_jvm = getattr(gateway, "proc", None) is not None
    if started_jvm:
        server.ends_application = True
        leave_before_death(server)  # at each call, because the first may have come on another thread than main


def _has_ended(listener: CompletionListener) -> bool:
    """Whether the listener's application has ended: Spark was stopped, or its JVM is gone. A process may start a second
    JVM."""
    try:
        return listener.stopped()
    except Exception:  # of any kind from py4j
        return True


def _replace_listener(new: CompletionListener) -> None:
    """Replaces the listener of a stopped application. Readers of that application may still be connected, because both
    applications run in the same JVM."""
    attended = False
    for former in _listeners:
        attended = former.attended
        if attended:
            former.hand_over()
    _listeners[:] = [new]
    if attended:
        new.attend(True)


def _attend(attended: bool) -> None:
    for listener in _listeners:
        listener.attend(attended)


def _drain() -> None:
    for listener in _listeners:
        listener.drain()


def _rejection(key: str) -> Rejection | None:
    if not _listeners:
        return None
    return _listeners[-1].rejection(key)
