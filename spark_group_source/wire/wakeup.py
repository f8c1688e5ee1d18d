"""Ends another thread's wait on a socket."""

from __future__ import annotations

import contextlib
import socket


class Interrupted(BaseException):
    """:meth:`WakeupPipe.set` ended the wait. Not an ``Exception``, so that no error handling swallows it."""


class WakeupPipe:
    """Becomes readable when :meth:`set` is called, and stays readable."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)

    def fileno(self) -> int:
        """Returns the descriptor that a selector waits on."""
        return self._read_end.fileno()

    def set(self) -> None:
        """Ends the wait, now or when it begins. May be repeated. Caller: any thread."""
        # After thousands of calls the pipe is full, and so already readable.
        with contextlib.suppress(BlockingIOError):
            self._write_end.send(b"\0")

    def close(self) -> None:
        """Frees the sockets. Call this only when no thread waits any more."""
        self._read_end.close()
        self._write_end.close()
