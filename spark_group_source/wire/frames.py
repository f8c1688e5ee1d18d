"""Frames: a length, and as many bytes of a response.

The length decides how much memory a response takes, so an impossible length is an error before any memory is allocated.
"""

from __future__ import annotations

import contextlib
import struct
from socket import socket

from spark_group_source.clock import Deadline
from spark_group_source.errors import ProtocolError
from spark_group_source.wire import sockets
from spark_group_source.wire.waiting import wait_ready

MAX_FRAME = 2**30
"""Maximum size of a response in bytes. Any sensible fetch is smaller; a corrupt length is probably larger."""

MAX_FRAME_BEFORE_SIGN_IN = 2**20
"""Maximum size of a response in bytes before the connection is authenticated. Such responses are small, and an unknown
server must not make this client allocate memory. The TLS alert of a listener reads as a length of about 350 MB."""

MAX_TURN = 2**20
"""Maximum bytes to decrypt before the deadline is checked again. A check for each TLS record of 16 kB would take a
tenth of the CPU time."""

_TOO_LARGE = (
    "Since a fetch asks for less, the response holds a single record batch of that size. Lower 'max.message.bytes' of"
    " the topic, or 'message.max.bytes' of the brokers, so that producers write smaller batches. To skip the batch,"
    " commit an offset after it for the group."
)
_NO_KAFKA = "Is it a Kafka broker? If the listener uses TLS, set 'kafka.security.protocol' to SSL or SASL_SSL."

_SIZE = struct.Struct(">i")


class FrameReader:
    """Receives one response at a time, each into a buffer of its size. It can resume after an interrupted wait.

    Args:
        peer: names the broker in errors; may be set later.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.max_frame = MAX_FRAME_BEFORE_SIGN_IN
        self._size = bytearray(_SIZE.size)
        self._frame: memoryview | None = None
        self._received = 0
        self._buffer = bytearray()
        self._spare_buffer = bytearray()

    def receive(self, sock: socket, deadline: Deadline) -> tuple[memoryview, bytearray]:
        """Returns the next response without its length, and the buffer that holds it.

        Raises:
            TimeoutError: the response is not complete at the deadline.
            OSError: the connection broke, or the broker closed it.
            ProtocolError: the length is impossible.
            Interrupted: the deadline's wakeup was set first.
        """
        if self._frame is None:
            self._fill(sock, memoryview(self._size), deadline)
            (size,) = _SIZE.unpack(self._size)
            self._frame = self._allocate(size)
        self._fill(sock, self._frame, deadline)
        frame, self._frame = self._frame, None
        return frame, self._buffer

    def _fill(self, sock: socket, target: memoryview, deadline: Deadline) -> None:
        """Receives the rest of ``target``."""
        while self._received < len(target):
            self._received += _receive(sock, target[self._received :], deadline)
            # A broker that sends a byte now and then never lets one operation time out. A response that is complete by
            # now is accepted: it may have arrived while this thread waited for another broker.
            if self._received < len(target) and deadline.expired():
                raise TimeoutError
        self._received = 0

    def reuse(self, buffer: bytearray) -> None:
        """Keeps ``buffer`` for a later response. Nothing may use its bytes afterwards.

        Without a kept buffer, the system would clear and page in fresh memory for each fetch of some MB.
        """
        if len(buffer) > len(self._spare_buffer):
            self._spare_buffer = buffer

    def release_buffers(self) -> None:
        """Frees the buffers that are kept for later responses."""
        self._spare_buffer = bytearray()
        if self._frame is None:
            self._buffer = bytearray()

    def _allocate(self, size: int) -> memoryview:
        if not _SIZE.size <= size <= self.max_frame:
            raise self._impossible_size(size)
        self._buffer, self._spare_buffer = self._spare_buffer, bytearray()
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]

    def _impossible_size(self, size: int) -> ProtocolError:
        happened = f"Broker {self.peer} announces a response of {size} bytes"
        # A length before the sign-in, or any length from an HTTP server, may be text or part of another protocol.
        if size > MAX_FRAME and self.max_frame == MAX_FRAME and self._size != b"HTTP":
            return ProtocolError(f"{happened}; this source receives at most {MAX_FRAME}.", _TOO_LARGE)
        return ProtocolError(f"{happened}.", _NO_KAFKA)


def _receive(sock: socket, target: memoryview, deadline: Deadline) -> int:
    """Waits for bytes, and receives those that came."""
    if sockets.uses_tls(sock):
        return _receive_decrypted(sock, target[:MAX_TURN], deadline)
    if deadline.wakeup is not None:
        return _receive_interruptibly(sock, target, deadline)
    sockets.set_timeout(sock, deadline)
    return _some(sock.recv_into(target))


def _receive_decrypted(sock: socket, target: memoryview, deadline: Deadline) -> int:
    """Waits for bytes, and receives what TLS can decrypt without another wait. A call returns one TLS record."""
    received = _receive_interruptibly(sock, target, deadline)
    with contextlib.suppress(*sockets.not_ready_errors(sock)):
        while received < len(target):
            received += _some(sock.recv_into(target[received:]))
    return received


def _receive_interruptibly(sock: socket, target: memoryview, deadline: Deadline) -> int:
    """Reads without blocking: the bytes that came may be only a part of a TLS record, and the rest may never come."""
    while True:
        if not sockets.has_decrypted_bytes(sock) and not wait_ready(sock.fileno(), deadline):
            raise TimeoutError
        sock.settimeout(0)
        with contextlib.suppress(*sockets.not_ready_errors(sock)):
            return _some(sock.recv_into(target))


def _some(received: int) -> int:
    if received == 0:
        raise ConnectionResetError("the broker closed the connection")
    return received
