"""A way for any thread to end another's wait on a socket."""

from __future__ import annotations

import contextlib
import socket


class Interrupted(BaseException):
    """The wait was ended by :meth:`WakeupPipe.set`. Not an error, so that nothing that deals with errors keeps it."""


class WakeupPipe:
    """Becomes readable once set, and stays so."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)

    def fileno(self) -> int:
        """What a selector waits on."""
        return self._read.fileno()

    def set(self) -> None:
        """Ends the wait, now or when it begins. Repeating it does no harm. Caller: any thread."""
        # It does not fit where it was set thousands of times: then it is set.
        with contextlib.suppress(BlockingIOError):
            self._write.send(b"\0")

    def close(self) -> None:
        """Frees the sockets, once nobody waits any more."""
        self._read.close()
        self._write.close()
