"""The low-water mark of a socket (``SO_RCVLOWAT``): how many bytes must have arrived before a wait for bytes ends."""

from __future__ import annotations

import socket
import sys

MAX_MARK = 2**20
"""Maximum mark in bytes. With 4 MiB, the broker waits for this thread, and a large response takes longer."""
MIN_MARK = 2**18
"""Minimum mark in bytes. Fewer bytes arrive in a call or two: setting and resetting the mark would cost more than it
saves."""
PATIENCE = 0.25
"""Maximum seconds to wait for a mark."""

NO_MARK = 1
SUPPORTED = sys.platform == "linux"
"""Windows lets no program set the mark, and its effect on other systems was never measured."""


class LowWaterMark:
    """The low-water mark of one connection without TLS, raised only while the body of a large response arrives.

    Otherwise this thread would wake up after every few packets. Linux also widens the TCP window to twice the mark at
    once, which helps with distant brokers.

    Each mark that is not reached in time halves the marks of this connection, until none is raised: the network may be
    slow, and before Linux 5.12, packets that use little of their buffers can keep a mark out of reach.
    """

    def __init__(self) -> None:
        self._limit = MAX_MARK
        self._mark = NO_MARK

    @property
    def is_raised(self) -> bool:
        """Whether a wait may last although bytes have arrived."""
        return self._mark > NO_MARK

    def raise_for(self, sock: socket.socket, missing: int) -> None:
        """Raises the mark before a wait for ``missing`` bytes, but never above ``missing``, because no more bytes may
        come."""
        mark = min(self._limit, missing)
        if SUPPORTED and mark >= MIN_MARK:
            self._set(sock, mark)
        else:
            self.reset(sock)

    def halve(self) -> None:
        """Halves later marks, because the current mark was not reached in time."""
        self._limit = self._mark // 2

    def reset(self, sock: socket.socket) -> None:
        """Lowers the mark, so that a wait ends at the first byte again."""
        self._set(sock, NO_MARK)

    def _set(self, sock: socket.socket, mark: int) -> None:
        if mark != self._mark:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
            self._mark = mark
