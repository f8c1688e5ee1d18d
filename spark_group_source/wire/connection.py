"""One blocking socket to one broker, carrying kafka-python's message classes.

Framing is ours: a response is received into one buffer of its size, and what is decoded from it may point into that
buffer, so that fetched records are never copied. Every wait ends at a deadline. After any failure the connection is
closed: an answer that comes late must never be taken for that of the next request.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaError
from kafka.protocol.metadata import ApiVersionsRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, ProtocolError
from spark_group_source.wire import versions
from spark_group_source.wire.interrupt import Interrupt, Interrupted
from spark_group_source.wire.settings import WireOptions

MAX_FRAME = 2**30
"""Largest response accepted, in bytes: beyond any fetch size that makes sense, below what a broken length may claim."""

_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Payload:
    """A response as it came: ``body`` begins behind the response header, and lies in ``buffer``."""

    request: Any
    body: memoryview
    buffer: bytearray


class Connection:
    """A connection to one broker, for one thread. Use :meth:`open`."""

    def __init__(self, sock: socket.socket, host: str, port: int, options: WireOptions) -> None:
        self.host = host
        self.port = port
        self._socket: socket.socket | None = sock
        self._client_id = options.client_id
        self._correlation_id = 0
        self._in_flight: deque[tuple[int, Any]] = deque()
        self._size = bytearray(_SIZE.size)
        self._frame: memoryview | None = None
        self._buffer = bytearray()
        self._spare = bytearray()
        self._received = 0

    @classmethod
    def open(cls, host: str, port: int, options: WireOptions, deadline: Deadline) -> Connection:
        """Connects and checks that the broker speaks the pinned versions.

        Raises:
            BrokerUnavailable: no address of the host accepts connections.
            DeadlineExceeded: it took too long.
            ProtocolError: the broker is too old, or no Kafka broker at all.
        """
        deadline = deadline.at_most(options.connect_timeout)
        connection = cls(_connect(host, port, options, deadline), host, port, options)
        try:
            connection._check_versions(deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def __str__(self) -> str:
        return address(self.host, self.port)

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._socket is None

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered yet."""
        return len(self._in_flight)

    def fileno(self) -> int:
        """What a selector waits on for the next answer."""
        return self._open_socket().fileno()

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Sends a request and returns its answer, decoded."""
        self.send(request, deadline)
        return self.receive(deadline)

    def send(self, request: Any, deadline: Deadline) -> None:
        """Sends a request, a kafka-python message with its version; answers come in order of the requests.

        Raises:
            BrokerUnavailable: the connection broke, or the broker had closed it.
            DeadlineExceeded: the broker did not take the request in time.
        """
        self._correlation_id = (self._correlation_id + 1) % 2**31
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        with self._closing_on_failure(request, deadline):
            sock = self._open_socket()
            sock.settimeout(max(deadline.remaining(), 0.001))
            sock.sendall(request.encode(framed=True, header=True))
            self._in_flight.append((self._correlation_id, request))

    def receive(self, deadline: Deadline, interrupt: Interrupt | None = None) -> Any:
        """The next answer, decoded.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: there is none; the connection is closed.
            Interrupted: ``interrupt`` was set first; what came so far is kept, and receive() may be called again.
        """
        payload = self.receive_payload(deadline, interrupt)
        with self._closing_on_failure(payload.request, deadline):
            return _response_class(payload.request).decode(payload.body)

    def receive_payload(self, deadline: Deadline, interrupt: Interrupt | None = None) -> Payload:
        """The next answer, not decoded. Raises what :meth:`receive` does."""
        if not self._in_flight:
            raise ProtocolError(f"Nothing was asked of broker {self}, so there is no answer to wait for.")
        correlation_id, request = self._in_flight[0]
        with self._closing_on_failure(request, deadline):
            frame = self._receive_frame(deadline, interrupt)
            (answered,) = _SIZE.unpack_from(frame)
            if answered != correlation_id:
                raise ProtocolError(f"Broker {self} answered request {answered} where {correlation_id} was due.")
            self._in_flight.popleft()
            return Payload(request, frame[_header_size(request, frame) :], self._buffer)

    def reuse(self, payload: Payload) -> None:
        """Receives a later answer into the memory of ``payload``, of which nothing may be in use any more.

        Fresh memory for each fetch of some MB would be cleared and paged in each time.
        """
        if len(payload.buffer) > len(self._spare):
            self._spare = payload.buffer

    def usable(self) -> bool:
        """Whether the broker has not closed an idle connection behind our back."""
        if self._socket is None:
            return False
        readable, _, _ = select.select([self._socket], [], [], 0)
        # With nothing asked, readable means the end of the stream, or bytes that belong to nothing.
        return not readable or bool(self._in_flight)

    def close(self) -> None:
        """Closes the socket; repeating it does no harm."""
        sock, self._socket = self._socket, None
        self._in_flight.clear()
        if sock is not None:
            sock.close()

    def _receive_frame(self, deadline: Deadline, interrupt: Interrupt | None) -> memoryview:
        while True:
            into = memoryview(self._size if self._frame is None else self._frame)
            while self._received < len(into):
                self._received += self._receive_into(into[self._received :], deadline, interrupt)
            self._received = 0
            if self._frame is not None:
                frame, self._frame = self._frame, None
                return frame
            (size,) = _SIZE.unpack(self._size)
            if not _SIZE.size <= size <= MAX_FRAME:
                raise ProtocolError(
                    f"Broker {self} announces a response of {size} bytes.",
                    "Is it a Kafka broker, and is this the port of a listener without TLS?",
                )
            self._buffer, self._spare = self._spare, bytearray()
            if len(self._buffer) < size:
                self._buffer = bytearray(size)
            self._frame = memoryview(self._buffer)[:size]

    def _receive_into(self, into: memoryview, deadline: Deadline, interrupt: Interrupt | None) -> int:
        sock = self._open_socket()
        if interrupt is not None:
            readable, _, _ = select.select([sock.fileno(), interrupt.fileno()], [], [], deadline.remaining())
            if interrupt.fileno() in readable:
                raise Interrupted
        sock.settimeout(max(deadline.remaining(), 0.001))
        received = sock.recv_into(into)
        if received == 0:
            raise ConnectionResetError("it closed the connection")
        if deadline.expired():
            raise TimeoutError
        return received

    def _check_versions(self, deadline: Deadline) -> None:
        request = ApiVersionsRequest(
            version=versions.API_VERSIONS, client_software_name="spark-group-source", client_software_version="1"
        )
        spoken = {each.api_key: each for each in self.call(request, deadline).api_keys}
        for key, version in versions.PINNED.items():
            known = spoken.get(key)
            if known is None or not known.min_version <= version <= known.max_version:
                raise ProtocolError(
                    f"Broker {self} does not speak version {version} of API {key}.", "Kafka 3.3 or later is needed."
                )

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionResetError("the connection was closed")
        return self._socket

    @contextlib.contextmanager
    def _closing_on_failure(self, request: Any, deadline: Deadline) -> Any:
        try:
            yield
        except Interrupted:
            raise
        except TimeoutError as error:
            self.close()
            raise DeadlineExceeded(f"Broker {self} did not answer {request.name} in time.") from error
        except OSError as error:
            self.close()
            raise BrokerUnavailable(f"Broker {self} could not be asked {request.name}: {error}.") from error
        except (KafkaError, struct.error, ValueError, IndexError) as error:
            self.close()
            raise ProtocolError(f"Broker {self} answered {request.name} with bytes that are no response.") from error
        except BaseException:
            self.close()
            raise


def address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _response_class(request: Any) -> Any:
    return request.header.get_response_class()


def _header_size(request: Any, frame: memoryview) -> int:
    """Bytes of the response header: the correlation id, and in flexible versions an empty set of tagged fields."""
    answer = _response_class(request)
    # ApiVersions keeps the old header in all versions, so that brokers can answer versions they do not know.
    if request.API_KEY == ApiVersionsRequest.API_KEY or not answer.flexible_version_q(request.API_VERSION):
        return _SIZE.size
    if frame[_SIZE.size] != 0:
        raise ValueError("tagged fields in a response header")
    return _SIZE.size + 1


def _connect(host: str, port: int, options: WireOptions, deadline: Deadline) -> socket.socket:
    trouble: OSError | None = None
    for family, kind, protocol, _, where in _resolve(host, port, deadline):
        sock = socket.socket(family, kind, protocol)
        try:
            # Buffer sizes must be set before the connect: they decide the TCP window scale.
            if options.receive_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
            if options.send_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.settimeout(max(deadline.remaining(), 0.001))
            sock.connect(where)
        except OSError as error:
            sock.close()
            trouble = error
            continue
        return sock
    raise BrokerUnavailable(f"Broker {address(host, port)} cannot be reached: {trouble}.") from trouble


def _resolve(host: str, port: int, deadline: Deadline) -> list[Any]:
    """All addresses of a host. The system's resolver knows no deadline: it is waited for in a thread."""
    answer: list[Any] = []

    def look_up() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answer.append(error)

    resolver = threading.Thread(target=look_up, name="resolver", daemon=True)
    resolver.start()
    resolver.join(deadline.remaining())
    if not answer:
        raise DeadlineExceeded(f"Host '{host}' was not resolved in time.")
    if isinstance(answer[0], OSError):
        raise BrokerUnavailable(f"Host '{host}' cannot be resolved: {answer[0]}.") from answer[0]
    return list(answer[0])
