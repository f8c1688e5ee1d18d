"""Reports completed batches to readers, from the user's process: the server of a Unix socket.

Each reader connects (:mod:`.client`), and disconnects when it has left its group. It receives a digest of the end
offset of every batch that the application completes, and recognises its own batch. A reader also learns when its
application ends or its query was stopped, and then leaves the group. The thread ``kafka-group-readers`` accepts readers
and answers their requests. ``_lock`` guards the connections. No thread waits for Kafka or Spark while it holds the
lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import socket
import threading
from collections.abc import Callable
from typing import Any

from spark_group_source.clock import WARN_EVERY, LogEvery, monotonic
from spark_group_source.spark.notifications.messages import (
    ALL,
    APPLICATION,
    BEGINS,
    DRAINED,
    LEAVE,
    MAY_BEGIN,
    STOPPED,
    Rejection,
    digest,
)
from spark_group_source.spark.notifications.unix_socket import keep_directory, listen, places

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 2.0
"""Maximum seconds that the ending process waits for the server's thread."""

LEAVE_TIMEOUT = 2.0
"""Maximum seconds that the ending process waits until the readers have left."""

ACCEPT_PAUSE = 1.0
"""Seconds until the server accepts readers again after a failure, for example in a process without free file
descriptors."""


class NotificationServer:
    """Reports completed batches to all connected readers.

    Only processes of this user can connect, because the socket is in a directory that is closed to others.

    Args:
        drain: returns when Spark has delivered all events so far.
        rejection: why the query of a reader must not begin, by the key of its source.
        attend: called with True when the first reader has connected, and with False when the last one has left.

    Raises:
        OSError: the socket cannot be created in any directory.
    """

    def __init__(
        self,
        drain: Callable[[], None],
        rejection: Callable[[str], Rejection | None] = lambda key: None,
        attend: Callable[[bool], None] = lambda attended: None,
    ) -> None:
        self._drain = drain
        self._rejection = rejection
        self._attend = attend
        self.attended = False
        self.ends_application = False
        """Whether the Spark application ends with this process."""
        self.process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._departed = threading.Condition(self._lock)
        # Each connection's application; None until it has named one, which makes it a reader. A process that looks for
        # the sockets of ended processes connects too, and names none.
        self._readers: dict[socket.socket, str | None] = {}
        self._accepting, self._resumes_at = True, 0.0
        self._warnings = LogEvery(WARN_EVERY)
        self._selector = selectors.DefaultSelector()
        try:
            self._listening, path = listen(places())
        except OSError:
            self._selector.close()
            raise
        self.path, self._directory = str(path), path.parent
        self._kept: int | None = None
        with contextlib.suppress(OSError):
            self._kept = keep_directory(self._directory)
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="kafka-group-readers", daemon=True)
        self._thread.start()

    def send(self, ends: list[dict[str, Any]]) -> None:
        """Reports the end offsets of a completed batch to all readers; disconnects a reader that does not read."""
        self._send_to_all(b"".join(digest(end) + b"\n" for end in ends))

    def end_application(self) -> None:
        """Notifies all readers that their application ends."""
        self._send_to_all(LEAVE)

    def end_query(self, ends: list[dict[str, Any]]) -> None:
        """Notifies the readers of one query that it was stopped. ``ends`` are the end offsets of its last planned
        batch."""
        self._send_to_all(b"".join(STOPPED + digest(end) + b"\n" for end in ends))

    def end_queries(self, application: str) -> None:
        """Notifies the readers of an application that all of its queries were stopped."""
        with self._lock:
            for reader in [each for each, its in self._readers.items() if its == application]:
                self._send(reader, STOPPED + ALL + b"\n")

    def leave(self, timeout: float = LEAVE_TIMEOUT) -> None:
        """Notifies all readers that their application ends, and waits at most ``timeout`` seconds until they have
        left."""
        self.end_application()
        with self._departed:
            self._departed.wait_for(lambda: not self._readers, timeout)

    def close(self) -> None:
        """Reports the events that Spark has yet to deliver, then closes all connections. Does nothing in a forked
        child.

        If the application ends with this process, the readers leave first. Ctrl-C ends only the wait that it
        interrupts: what follows is short, and Python would show a traceback.
        """
        if os.getpid() != self.process:
            return
        with contextlib.suppress(Exception, KeyboardInterrupt):  # the JVM may be gone
            self._drain()
        if self.ends_application:
            with contextlib.suppress(KeyboardInterrupt):
                self.leave()
        with contextlib.suppress(KeyboardInterrupt):
            self._end_thread()

    def _end_thread(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waking:
            waking.connect(self.path)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._thread.join(CLOSE_TIMEOUT)

    def _serve(self) -> None:
        while not self._closed:
            self._resume_accepting()
            for key, _ in self._selector.select(None if self._accepting else ACCEPT_PAUSE):
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer(key.fileobj)
            self._note_attendance()
        with self._lock:
            for reader in list(self._readers):
                self._drop(reader)
            self._selector.close()
            self._listening.close()
            if self._kept is not None:
                os.close(self._kept)

    def _note_attendance(self) -> None:
        attended = any(application is not None for application in self._readers.values())
        if attended == self.attended:
            return
        self.attended = attended
        try:
            self._attend(attended)
        except Exception as error:  # of any kind from the JVM
            log.debug("cannot note whether there are readers: %s", error)

    def _accept(self) -> None:
        try:
            reader, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the reader has left
            return
        except OSError as error:
            self._pause_accepting(error)
            return
        reader.setblocking(False)
        with self._lock:
            try:
                self._selector.register(reader, selectors.EVENT_READ)
            except OSError as error:
                log.debug("cannot serve a reader: %s", error)
                reader.close()
            else:
                self._readers[reader] = None

    def _pause_accepting(self, error: OSError) -> None:
        """Stops waiting for new readers for a while: a reader that cannot be accepted would end the next wait at
        once."""
        self._selector.unregister(self._listening)
        self._accepting = False
        self._resumes_at = monotonic() + ACCEPT_PAUSE
        if self._warnings.try_acquire():
            log.warning(
                "cannot accept a query's connection, over which this process reports completed batches; still retrying:"
                " %s. Until the query is connected, it commits each batch only when Spark plans the next one.",
                error,
            )

    def _resume_accepting(self) -> None:
        if self._accepting:
            return
        if monotonic() >= self._resumes_at:
            self._accepting = True
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _answer(self, reader: socket.socket) -> None:
        try:
            asked = reader.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            asked = b""
        answers = b"".join(self._answer_to(question, reader) for question in asked.splitlines(keepends=True))
        with self._lock:
            if asked:
                self._send(reader, answers)
            else:
                self._drop(reader)

    def _answer_to(self, question: bytes, reader: socket.socket) -> bytes:
        if question.startswith(APPLICATION):
            self._note_application(reader, question.removeprefix(APPLICATION).strip().decode())
            return b""
        if question.startswith(MAY_BEGIN):
            rejection = self._rejection_of(question.removeprefix(MAY_BEGIN).strip())
            return BEGINS + json.dumps(rejection).encode() + b"\n"
        try:
            self._drain()
        except Exception as error:  # of any kind from the JVM: the reader must not wait longer
            log.debug("cannot wait for Spark's events: %s", error)
        return DRAINED

    def _note_application(self, reader: socket.socket, application: str) -> None:
        with self._lock:
            if reader in self._readers:
                self._readers[reader] = application

    def _rejection_of(self, key: bytes) -> Rejection | None:
        try:
            return self._rejection(key.decode())
        except Exception as error:  # of any kind from the JVM: the reader must not wait longer
            log.debug("cannot check the queries that have started: %s", error)
            return None

    def _send_to_all(self, message: bytes) -> None:
        with self._lock:
            for reader in list(self._readers):
                self._send(reader, message)

    def _send(self, reader: socket.socket, message: bytes) -> None:
        if reader not in self._readers:
            return
        try:
            if reader.send(message) == len(message):
                return
        except OSError as error:
            log.debug("cannot send to a reader: %s", error)
        self._drop(reader)

    def _drop(self, reader: socket.socket) -> None:
        if reader in self._readers:
            del self._readers[reader]
            self._selector.unregister(reader)
            reader.close()
            self._departed.notify_all()
