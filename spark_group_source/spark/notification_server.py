"""Reports completed batches to readers, from the user's process: the server of a Unix socket.

Each reader connects (:mod:`.notification_client`). It receives a digest of the end offset of every batch that the
application completes, and recognises its own batch. The thread ``kafka-group-readers`` accepts readers and answers
their requests. ``_lock`` guards the connections; no thread waits for Kafka or Spark under it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_group_source.spark.notification_client import DRAINED, digest, remove_if_dead

log = logging.getLogger(__name__)

PREFIX, NAME = "kafka-group-", "notifications"
"""Names of the directory and of the socket in it."""

CLOSE_TIMEOUT = 2.0
"""Maximum seconds that the end of the process waits for the server's thread."""


class NotificationServer:
    """Reports completed batches to all connected readers.

    Only processes of this user can connect: the socket lies in a directory that is closed to others.

    Args:
        drain: returns when Spark has delivered all events so far.

    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{NAME}"):
            remove_if_dead(path)
        self._directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.path = str(self._directory / NAME)
        self.process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._readers: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # It gets its name when it listens: before that, another process would take it for a dead server's.
            self._listening.bind(f"{self.path}.new")
            self._listening.listen()
            os.rename(f"{self.path}.new", self.path)
            self._listening.setblocking(False)
        except OSError:
            self._listening.close()
            self._selector.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="kafka-group-readers", daemon=True)
        self._thread.start()

    def send(self, ends: list[dict[str, Any]]) -> None:
        """Reports the end offsets of a completed batch to all readers; disconnects a reader that does not read."""
        message = b"".join(digest(end) + b"\n" for end in ends)
        with self._lock:
            for reader in list(self._readers):
                self._send(reader, message)

    def close(self) -> None:
        """Delivers what Spark has still to report, then closes all connections. In a forked child it does nothing."""
        if os.getpid() != self.process:
            return
        with contextlib.suppress(Exception):  # the JVM may be gone
            self._drain()
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waking:
            waking.connect(self.path)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._thread.join(CLOSE_TIMEOUT)

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer(key.fileobj)
        with self._lock:
            for reader in list(self._readers):
                self._drop(reader)
            self._selector.close()
            self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            reader, _ = self._listening.accept()
            reader.setblocking(False)
            with self._lock:
                self._readers.add(reader)
                self._selector.register(reader, selectors.EVENT_READ)

    def _answer(self, reader: socket.socket) -> None:
        try:
            asked = reader.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            asked = b""
        if asked:
            try:
                self._drain()
            except Exception as error:  # whatever the JVM says: the reader must not wait for longer
                log.debug("Spark's events could not be waited for: %s", error)
        with self._lock:
            if asked:
                self._send(reader, DRAINED)
            else:
                self._drop(reader)

    def _send(self, reader: socket.socket, message: bytes) -> None:
        if reader not in self._readers:
            return
        try:
            if reader.send(message) == len(message):
                return
        except OSError as error:
            log.debug("a reader cannot be reached any more: %s", error)
        self._drop(reader)

    def _drop(self, reader: socket.socket) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            self._selector.unregister(reader)
            reader.close()
