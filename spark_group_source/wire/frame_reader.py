"""Responses out of a stream of bytes: a length of four bytes, then that many."""

from __future__ import annotations

import contextlib
import ssl
import struct
from socket import socket

from spark_group_source.clock import Deadline
from spark_group_source.errors import ProtocolError
from spark_group_source.wire import sockets
from spark_group_source.wire.waiting import wait_ready

MAX_FRAME = 2**30
"""Largest response accepted, in bytes: beyond any fetch size that makes sense, below what a broken length may claim."""

MAX_FIRST_FRAME = 2**20
"""The same for the first response, which is small: what a listener with TLS answers claims some 350 MB."""

_TOO_LARGE = (
    "A fetch asks for less, so it met a single record batch of that size. Lower 'max.message.bytes' of the topic, or"
    " 'message.max.bytes' of the brokers, so that producers write smaller batches. To skip the batch, set the group's"
    " offset behind it."
)
_NO_KAFKA = "Is it a Kafka broker? For a listener with TLS set 'kafka.security.protocol' to SSL or SASL_SSL."

_SIZE = struct.Struct(">i")


class FrameReader:
    """Receives one response at a time, each into memory of its size. A wait that was cut short may be gone on with.

    Args:
        peer: what errors call the broker.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.max_frame = MAX_FIRST_FRAME
        self._size = bytearray(_SIZE.size)
        self._frame: memoryview | None = None
        self._received = 0
        self._buffer = bytearray()
        self._spare = bytearray()

    def receive(self, sock: socket, deadline: Deadline) -> tuple[memoryview, bytearray]:
        """The next response without its length, and the buffer in which it lies.

        Raises:
            TimeoutError: it is not complete at the deadline.
            OSError: the connection broke, or the peer closed it.
            ProtocolError: its length cannot be.
            Interrupted: the deadline's wakeup was set first.
        """
        while True:
            into = memoryview(self._size) if self._frame is None else self._frame
            while self._received < len(into):
                self._received += _receive_into(sock, into[self._received :], deadline)
                # A peer that sends a byte now and then never lets one operation run out of time. What has all come by
                # now is good, though: it may have waited here while this thread waited for another broker.
                if self._received < len(into) and deadline.expired():
                    raise TimeoutError
            self._received = 0
            if self._frame is not None:
                frame, self._frame = self._frame, None
                return frame, self._buffer
            (size,) = _SIZE.unpack(self._size)
            self._frame = self._memory(size)

    def reuse(self, buffer: bytearray) -> None:
        """Receives a later response into ``buffer``, of which nothing may be in use any more.

        Fresh memory for each fetch of some MB would be cleared and paged in each time.
        """
        if len(buffer) > len(self._spare):
            self._spare = buffer

    def release_buffers(self) -> None:
        """Keeps none for later responses."""
        self._spare = bytearray()
        if self._frame is None:
            self._buffer = bytearray()

    def _memory(self, size: int) -> memoryview:
        if not _SIZE.size <= size <= self.max_frame:
            raise self._refusal(size)
        self._buffer, self._spare = self._spare, bytearray()
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]

    def _refusal(self, size: int) -> ProtocolError:
        happened = f"Broker {self._peer} announces a response of {size} bytes"
        # The length of the first response, or of any from an HTTP server, is text or a part of another protocol.
        if size > MAX_FRAME and self.max_frame == MAX_FRAME and self._size != b"HTTP":
            return ProtocolError(f"{happened}; this source receives at most {MAX_FRAME}.", _TOO_LARGE)
        return ProtocolError(f"{happened}.", _NO_KAFKA)


def _receive_into(sock: socket, into: memoryview, deadline: Deadline) -> int:
    if deadline.wakeup is None:
        sockets.limit(sock, deadline)
        received = sock.recv_into(into)
    else:
        received = _receive_interruptibly(sock, into, deadline)
    if received == 0:
        raise ConnectionResetError("it closed the connection")
    return received


def _receive_interruptibly(sock: socket, into: memoryview, deadline: Deadline) -> int:
    while True:
        if not sockets.buffered(sock) and not wait_ready(sock.fileno(), deadline):
            raise TimeoutError
        # Not to wait here: what came may be a part of a TLS record, and the rest of it may never come.
        sock.settimeout(0)
        with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
            return sock.recv_into(into)
