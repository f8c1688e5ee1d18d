"""Receives reports of completed batches in the reader's process, from :mod:`.server` in the user's process."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spark_group_source.clock import Backoff
from spark_group_source.spark.notifications.messages import (
    APPLICATION,
    BEGINS,
    DRAIN,
    DRAINED,
    LEAVE,
    MAY_BEGIN,
    STOPPED,
    Rejection,
)
from spark_group_source.spark.notifications.unix_socket import connect, remove_if_dead

log = logging.getLogger(__name__)


class ServerAddress(NamedTuple):
    """Where a reader finds the server of the user's process."""

    path: str = ""
    """The path of the socket; empty without a socket."""
    missing: str = "the session has no listener for completed batches; register(spark) adds one if it can"
    """Why there is no socket."""


RECONNECT_BACKOFF = (0.1, 10.0)
"""Initial and maximum seconds before a disconnected client connects again."""

DRAIN_TIMEOUT = 2.0
"""Maximum seconds that an ending query waits for its last notification."""

BEGIN_TIMEOUT = 5.0
"""Maximum seconds that a starting query waits until the user's process, which may be busy, has checked the query's
plan."""


class Listener(NamedTuple):
    """The functions that a client calls, on the thread ``completed-batches``."""

    completed: Callable[[bytes], object]
    """Called when Spark has completed a batch of any query of the application, with the digest of the batch's end."""
    application_ends: Callable[[], object] = lambda: None
    """Called when the application ends."""
    stopped: Callable[[bytes], object] = lambda digest: None
    """Called when a query was stopped and Spark has not ended it yet, with the digest of the end of the query's last
    batch, or :data:`messages.ALL`."""


class NotificationClient:
    """A reader's connection to the user's process.

    Args:
        path: the path of the server's socket.
        listener: the functions to call.
        application: the id of the Spark application.

    Raises:
        OSError: the server cannot be reached.
    """

    def __init__(self, path: str, listener: Listener, application: str = "") -> None:
        self._path = Path(path)
        self._listener = listener
        self._hello = APPLICATION + application.encode() + b"\n"
        self._closed = threading.Event()
        self._drained = threading.Event()
        self._begins = threading.Event()
        self._rejection: Rejection | None = None
        self._backoff = Backoff(*RECONNECT_BACKOFF)
        self._socket = self._connect()
        self._thread = threading.Thread(target=self._receive, name="completed-batches", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Waits until the listener was called for all batches that Spark has completed, at most
        :data:`DRAIN_TIMEOUT`."""
        self._drained.clear()
        with contextlib.suppress(OSError):
            if self._thread.is_alive():
                self._socket.sendall(DRAIN)
                self._drained.wait(DRAIN_TIMEOUT)

    def rejection(self, key: str) -> Rejection | None:
        """Asks the user's process whether the query of the source with this key may begin.

        Returns the reason why it may not, or ``None``. Without an answer within :data:`BEGIN_TIMEOUT`, the query may
        begin.
        """
        with contextlib.suppress(OSError):
            self._socket.sendall(MAY_BEGIN + key.encode() + b"\n")
            self._begins.wait(BEGIN_TIMEOUT)
        return self._rejection

    def close(self) -> None:
        """Ends the thread, unless a function of the listener still runs. The user's process sees that this reader has
        left."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self) -> None:
        """Reads reports until the client is closed, or the server has ended.

        The server disconnects a reader that does not read for long, for example in a paused process. The reader then
        connects again.
        """
        while not self._closed.is_set():
            self._read()
            self._drained.set()
            self._begins.set()
            if self._closed.wait(self._backoff.next()):
                return
            try:
                self._socket = self._connect()
            except FileNotFoundError:
                log.info(
                    "the user's process no longer reports completed batches: committing each batch when Spark plans the"
                    " next one"
                )
                return
            except OSError as error:
                log.debug("cannot reconnect to the user's process, which reports completed batches: %s", error)
                remove_if_dead(self._path)
        self._socket.close()  # close() may have closed the former socket only

    def _connect(self) -> socket.socket:
        connected = connect(str(self._path))
        try:
            connected.sendall(self._hello)
        except OSError:
            connected.close()
            raise
        return connected

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket, self._socket.makefile("rb") as lines:
            for line in lines:
                self._backoff.reset()
                if line.endswith(b"\n"):
                    self._receive_message(line)

    def _receive_message(self, line: bytes) -> None:
        if line == DRAINED:
            self._drained.set()
        elif line == LEAVE:
            self._listener.application_ends()
        elif line.startswith(STOPPED):
            self._listener.stopped(line.removeprefix(STOPPED).rstrip())
        elif line.startswith(BEGINS):
            self._receive_answer(line.removeprefix(BEGINS))
        else:
            self._listener.completed(line.rstrip())

    def _receive_answer(self, answer: bytes) -> None:
        rejection = json.loads(answer)
        self._rejection = None
        if rejection is not None:
            self._rejection = Rejection(*rejection)
        self._begins.set()
