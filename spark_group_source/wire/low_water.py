"""The low-water mark of a socket (``SO_RCVLOWAT``): how many bytes must have arrived before a wait for bytes ends."""

from __future__ import annotations

import socket
import sys

MAX_MARK = 2**20
"""Maximum mark in bytes. With 4 MiB the broker waits for this thread, and a large response takes longer."""
MIN_MARK = 2**18
"""Minimum mark in bytes. Fewer arrive in a call or two, and to set and reset the mark would cost more than it saves."""
PATIENCE = 0.25
"""Maximum seconds to wait for a mark."""

NO_MARK = 1
SUPPORTED = sys.platform == "linux"
"""Windows has no mark that can be set, and nobody has measured it on other systems."""


class LowWaterMark:
    """The low-water mark of one connection without TLS, raised only while the body of a large response arrives.

    Otherwise this thread would wake up for each few packets. Linux also widens the TCP window to twice the mark at
    once, which helps with distant brokers.

    A mark that was not reached in time is halved for this connection, and in the end it is not raised any more: the
    network may be slow, and before Linux 5.12 packets that fill their buffers badly can keep a mark from being reached.
    """

    def __init__(self) -> None:
        self._limit = MAX_MARK
        self._mark = NO_MARK

    @property
    def is_raised(self) -> bool:
        """Whether a wait may last although bytes have arrived."""
        return self._mark > NO_MARK

    def raise_for(self, sock: socket.socket, missing: int) -> None:
        """Raises the mark before a wait for ``missing`` bytes, but never above them: no more bytes may come."""
        mark = min(self._limit, missing)
        if SUPPORTED and mark >= MIN_MARK:
            self._set(sock, mark)
        else:
            self.reset(sock)

    def halve(self) -> None:
        """Lowers later marks, because the present one was not reached in time."""
        self._limit = self._mark // 2

    def reset(self, sock: socket.socket) -> None:
        """Lets each wait end with the first byte again."""
        self._set(sock, NO_MARK)

    def _set(self, sock: socket.socket, mark: int) -> None:
        if mark != self._mark:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
            self._mark = mark
