"""One fake broker: a listening socket, a thread per connection, kafka-python's messages in and out."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from kafka.protocol import admin, consumer, metadata, sasl

from spark_group_source.group.consumer.messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from tests.fake.faults import Fault, Faults, respond

KINDS = (
    *(metadata.ApiVersionsRequest, metadata.MetadataRequest, metadata.FindCoordinatorRequest),
    *(consumer.JoinGroupRequest, consumer.SyncGroupRequest, consumer.HeartbeatRequest, consumer.LeaveGroupRequest),
    *(consumer.OffsetCommitRequest, consumer.OffsetFetchRequest),
    *(consumer.ListOffsetsRequest, consumer.OffsetForLeaderEpochRequest, consumer.FetchRequest),
    *(admin.DescribeGroupsRequest, admin.ListGroupsRequest),
    *(ConsumerGroupHeartbeatRequest, ConsumerGroupDescribeRequest),
    *(sasl.SaslHandshakeRequest, sasl.SaslAuthenticateRequest),
)
REQUESTS = {each.API_KEY: each for each in KINDS}
_HEAD = struct.Struct(">hh")
_SIZE = struct.Struct(">i")


def message(kind: Any, version: int | None, **fields: Any) -> Any:
    """Makes a kafka-python message; nested ones are given as dicts."""
    for name, inner in _nested_kinds(kind).items():
        if name in fields:
            fields[name] = _nested(inner, fields[name], version)
    return kind(version=version, **fields)


def fill(response: Any, **fields: Any) -> None:
    """Sets fields of a response of any version, as :func:`message` does."""
    kinds = _nested_kinds(response.__class__)
    for name, value in fields.items():
        setattr(response, name, _nested(kinds[name], value, None) if name in kinds else value)


def _nested(kind: Any, value: Any, version: int | None) -> Any:
    if isinstance(value, list):
        return [_nested(kind, each, version) for each in value]
    return message(kind, version, **value) if isinstance(value, dict) else value


@cache
def _nested_kinds(kind: Any) -> dict[str, Any]:
    """The messages within this kind of messages, by field."""
    nested = (field for field in kind._struct.fields.values() if field.is_struct() or field.is_struct_array())
    return {field.name: field.data_class for field in nested}


Handler = Callable[[str, Any, int], Any]
"""Called with the API's name, the request and the error code to return; returns the response, or None for none."""


class FakeBroker:
    """Serves requests with ``handle`` on a loopback port, which stays the same after a restart.

    ``hung`` makes it read requests and never handle them. ``sent_while_muted`` counts the requests that clients sent
    while the broker throttled their connection.
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
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._start_thread(self._accept, self._listener)

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            _close(listener)
        self.disconnect()

    def disconnect(self) -> None:
        """Closes all connections, but accepts new connections."""
        for connection in list(self._connections):
            _close(connection)

    def join(self) -> None:
        """Waits for the threads after :meth:`stop`."""
        for thread in self._threads:
            thread.join(5.0)

    def _start_thread(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), name=f"fake-broker-{self.node}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.add(connection)
                self._start_thread(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (frame := read_frame(connection)) is not None:
                if not self.hung and not self._respond(connection, frame):
                    break
        except OSError:
            pass  # the client has closed it
        finally:
            self._connections.discard(connection)
            _close(connection)

    def _respond(self, connection: socket.socket, frame: bytes) -> bool:
        """Handles one request; returns whether the connection stays open."""
        key, version = _HEAD.unpack_from(frame)
        request = REQUESTS[key].decode(frame, version=version, header=True)
        api = _api(request)
        fault = self._faults.take(api, self.node, request) or Fault()
        if fault.drop == "before":
            return False
        response = respond(self._handle, api, request, fault)
        if response is None:
            return True
        if fault.drop == "after":
            return False
        muted_until = time.monotonic() + fault.throttle
        if not fault.silent:
            response.with_header(correlation_id=request.header.correlation_id)
            encoded = bytes(response.encode(header=True))[: fault.truncate]
            framed = _SIZE.pack(len(encoded)) + encoded
            _send(connection, framed if fault.raw is None else fault.raw, fault.dribble)
        if fault.throttle:
            self._mute(connection, muted_until)
        return fault.drop != "answered"

    def _mute(self, connection: socket.socket, until: float) -> None:
        """Reads nothing for a while, like brokers after a throttled response (KIP-219)."""
        connection.settimeout(max(0.001, until - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            if connection.recv(1, socket.MSG_PEEK) and (early := until - time.monotonic()) > 0:
                self.sent_while_muted += 1
                time.sleep(early)
        connection.settimeout(None)


def _api(request: Any) -> str:
    """The name of a request; ``ClusterId`` for Metadata without topics, by which a client asks only for the cluster."""
    name: str = request.name.removesuffix("Request")
    return "ClusterId" if name == "Metadata" and request.topics == [] else name


def _send(connection: socket.socket, encoded: bytes, dribble: float | None) -> None:
    if dribble is None:
        connection.sendall(encoded)
        return
    for each in encoded:
        connection.sendall(bytes([each]))
        time.sleep(dribble)


def read_frame(connection: socket.socket) -> bytes | None:
    """Returns the next message on a connection, without its length; None if the peer has closed the connection."""
    size = _read_exactly(connection, _SIZE.size)
    return None if size is None else _read_exactly(connection, *_SIZE.unpack(size))


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            return None
        received += part
    return bytes(received)


def _close(sock: socket.socket) -> None:
    # Shut down first, because close alone does not wake a thread that waits on the socket.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
