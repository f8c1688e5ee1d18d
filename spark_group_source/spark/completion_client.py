"""Receives reports of completed batches in the reader's process, from :mod:`.completion_server` in the user's."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from spark_group_source.spark.completion_server import DRAINED, remove_if_dead

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 2.0
"""Maximum seconds to connect."""

DRAIN_TIMEOUT = 2.0
"""Maximum seconds that a query which ends waits for its last completion."""


class CompletionClient:
    """Calls ``completed`` with the digest of the end offset of each batch that Spark completes in this application.

    The thread ``completed-batches`` calls it, for batches of all queries and sources of the application.
    """

    def __init__(self, path: str, completed: Callable[[bytes], None]) -> None:
        """Connects to the server at ``path``.

        Raises:
            OSError: it cannot be reached.
        """
        self._path = Path(path)
        self._completed = completed
        self._closed = False
        self._drained = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(CONNECT_TIMEOUT)
            self._socket.connect(path)
            self._socket.settimeout(None)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._receive, name="completed-batches", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Waits until ``completed`` has returned for all that Spark has completed, at most :data:`DRAIN_TIMEOUT`."""
        self._drained.clear()
        with contextlib.suppress(OSError):
            if self._thread.is_alive():
                self._socket.sendall(b"drain\n")
                self._drained.wait(DRAIN_TIMEOUT)

    def close(self) -> None:
        """Ends the thread, unless ``completed`` is still at work."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    if line == DRAINED:
                        self._drained.set()
                    elif line.endswith(b"\n"):
                        self._completed(line.rstrip())
        except OSError as error:
            log.debug("no more completions: %s", error)
        finally:
            self._drained.set()
            if not self._closed:
                log.info("completed batches are not reported any more: each is committed when the next one is planned")
                remove_if_dead(self._path)
