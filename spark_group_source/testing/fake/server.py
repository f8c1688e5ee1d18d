"""One fake broker: a listening socket, a thread per connection, kafka-python's messages in and out."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from kafka.protocol import admin, consumer, metadata, sasl

from spark_group_source.testing.fake.faults import Fault, Faults, put_error

REQUESTS = {
    each.API_KEY: each
    for each in (
        metadata.ApiVersionsRequest,
        metadata.MetadataRequest,
        metadata.FindCoordinatorRequest,
        consumer.JoinGroupRequest,
        consumer.SyncGroupRequest,
        consumer.HeartbeatRequest,
        consumer.LeaveGroupRequest,
        consumer.OffsetCommitRequest,
        consumer.OffsetFetchRequest,
        consumer.ListOffsetsRequest,
        consumer.OffsetForLeaderEpochRequest,
        consumer.FetchRequest,
        admin.DescribeGroupsRequest,
        sasl.SaslHandshakeRequest,
        sasl.SaslAuthenticateRequest,
    )
}
_HEAD = struct.Struct(">hh")
_SIZE = struct.Struct(">i")

Handler = Callable[[str, Any, int], Any]
"""Takes the API's name, the request and the broker's id; returns the response."""


class FakeBroker:
    """Serves ``handle`` on a loopback port, which it keeps when it is stopped and started again.

    ``sent_while_muted`` counts the requests that came on a connection while it was throttled.
    """

    def __init__(self, node: int, handle: Handler, faults: Faults) -> None:
        self.node = node
        self.port = 0
        self.hung = False
        self.sent_while_muted = 0
        self._handle = handle
        self._faults = faults
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Accepts connections from here on."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._begin(self._accept, self._listener)

    def stop(self) -> None:
        """Refuses connections and closes those that are open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _close(listener)
        self.disconnect()

    def disconnect(self) -> None:
        """Closes all connections; new ones are accepted."""
        for each in list(self._connections):
            _close(each)

    def join(self) -> None:
        """Waits for the threads, once stopped."""
        for each in self._threads:
            each.join(5.0)

    def _begin(self, work: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(sock,), name=f"fake-broker-{self.node}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.add(connection)
                self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (frame := read_frame(connection)) is not None:
                if not self.hung and not self._answer(connection, frame):
                    break
        except OSError:
            pass  # the client has closed it
        finally:
            self._connections.discard(connection)
            _close(connection)

    def _answer(self, connection: socket.socket, frame: bytes) -> bool:
        """Whether the connection is to be kept."""
        key, version = _HEAD.unpack_from(frame)
        request = REQUESTS[key].decode(frame, version=version, header=True)
        api = request.name.removesuffix("Request")
        fault = self._faults.take(api, self.node) or Fault()
        if fault.drop == "before":
            return False
        answer = self._handle(api, request, fault.error or 0)
        if fault.error:
            put_error(api, answer, fault.error)
        if fault.edit is not None:
            fault.edit(answer)
        if fault.throttle:
            answer.throttle_time_ms = round(fault.throttle * 1000)
        _wait(fault)
        if fault.drop == "after":
            return False
        muted_until = time.monotonic() + fault.throttle
        if not fault.silent:
            _send(connection, _encoded(answer, request.header.correlation_id, fault), fault.dribble)
        if fault.throttle:
            self._mute(connection, muted_until)
        return fault.drop != "answered"

    def _mute(self, connection: socket.socket, until: float) -> None:
        """Reads nothing for a while, as brokers do after a throttled answer (KIP-219)."""
        connection.settimeout(max(0.001, until - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            if connection.recv(1, socket.MSG_PEEK) and (early := until - time.monotonic()) > 0:
                self.sent_while_muted += 1
                time.sleep(early)
        connection.settimeout(None)


def _wait(fault: Fault) -> None:
    if fault.hold is not None:
        fault.hold.wait(30.0)
    if fault.delay:
        time.sleep(fault.delay)


def _send(connection: socket.socket, encoded: bytes, dribble: float | None) -> None:
    if dribble is None:
        connection.sendall(encoded)
        return
    for each in encoded:
        connection.sendall(bytes([each]))
        time.sleep(dribble)


def _encoded(answer: Any, correlation_id: int, fault: Fault) -> bytes:
    if fault.raw is not None:
        return fault.raw
    answer.with_header(correlation_id=correlation_id)
    encoded = bytes(answer.encode(header=True))[: fault.truncate]
    return _SIZE.pack(len(encoded)) + encoded


def read_frame(connection: socket.socket) -> bytes | None:
    """The next message on a connection, without its length; None where the peer has closed it."""
    size = _exactly(connection, _SIZE.size)
    return None if size is None else _exactly(connection, *_SIZE.unpack(size))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


def _close(sock: socket.socket) -> None:
    # Shut down first: closing alone does not wake a thread that waits on it.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
