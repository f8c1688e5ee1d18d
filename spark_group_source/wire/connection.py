"""One blocking socket to one broker, carrying kafka-python's message classes.

Framing is ours: a response is received into one buffer of its size, and what is decoded from it may point into that
buffer, so that fetched records are never copied. Every wait ends at a deadline. After any failure the connection is
closed: an answer that comes late must never be taken for that of the next request.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.protocol.metadata import ApiVersionsRequest

from spark_group_source.clock import Deadline, monotonic
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, ProtocolError
from spark_group_source.wire import sasl, sockets, tls, versions
from spark_group_source.wire.frame_reader import MAX_FRAME, FrameReader
from spark_group_source.wire.response import Response, correlation_id, header_size
from spark_group_source.wire.settings import Sasl, WireOptions
from spark_group_source.wire.throttle import Throttle
from spark_group_source.wire.waiting import wait_ready
from spark_group_source.wire.wakeup import Interrupted

if TYPE_CHECKING:
    from socket import socket

_NO_SASL = (
    "A listener with SASL ends connections without it like this: check the port in 'kafka.bootstrap.servers', or set"
    " 'kafka.security.protocol' to SASL_SSL or SASL_PLAINTEXT."
)


@dataclass(frozen=True, slots=True)
class _Sent:
    correlation_id: int
    request: Any
    at: float


class Connection:
    """A connection to one broker. Use :meth:`open`.

    ``used_at`` is when something was last sent, ``answered_at`` when the last answer came, in monotonic seconds.

    It belongs to one thread and one process: requests and answers are matched by their order alone, so neither another
    thread nor a forked child may use it.
    """

    def __init__(self, sock: socket, host: str, port: int, options: WireOptions, broker_id: int | None = None) -> None:
        self.host = host
        self.port = port
        self.broker_id = broker_id
        self.used_at = monotonic()
        self.answered_at: float | None = None
        self._socket: socket | None = sock
        self._client_id = options.client_id
        self._correlation_id = 0
        self._in_flight: deque[_Sent] = deque()
        self._receiver = FrameReader(str(self))
        self._throttle = Throttle(str(self))
        self._session: Deadline | None = None
        self._speaks_sasl = options.sasl is not None
        self._answered = False

    @classmethod
    def open(
        cls, host: str, port: int, options: WireOptions, deadline: Deadline, broker_id: int | None = None
    ) -> Connection:
        """Connects, with TLS and SASL as the options say, and checks that the broker speaks the pinned versions.

        Raises:
            AuthenticationFailed: one side refused the other's certificate or credentials.
            BrokerUnavailable: no address of the host accepts connections.
            DeadlineExceeded: it took too long.
            ProtocolError: the broker is too old, or no Kafka broker at all.
        """
        sock = sockets.connect(host, port, options, deadline)
        if options.tls is not None:
            sock = tls.handshake(sock, host, _named(host, port, broker_id), options.tls, deadline)
        connection = cls(sock, host, port, options, broker_id)
        try:
            connection._check_versions(deadline)
            if options.sasl is not None:
                connection._authenticate(options.sasl, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def __str__(self) -> str:
        return _named(self.host, self.port, self.broker_id)

    @property
    def closed(self) -> bool:
        """Whether it is of no more use."""
        return self._socket is None

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered yet."""
        return len(self._in_flight)

    @property
    def throttle_remaining(self) -> float:
        """Seconds until the broker reads from this connection again. Requests wait until then."""
        return self._throttle.remaining()

    def fileno(self) -> int:
        """What a selector waits on for the next answer."""
        return self._open_socket().fileno()

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Sends a request and returns its answer, decoded. Nothing else may be in flight."""
        self.send(request, deadline)
        return self.receive(deadline)

    def send(self, request: Any, deadline: Deadline) -> None:
        """Sends a request, a kafka-python message with its version; answers come in order of the requests.

        Raises:
            BrokerUnavailable: the connection broke, or the broker had closed it.
            DeadlineExceeded: the broker did not take the request in time; or it throttles this client beyond the
                deadline. Then nothing was sent, and the connection is as good as before.
            Interrupted: the deadline's wakeup was set while the broker throttled this client. Nothing was sent.
        """
        if not self.closed:
            self._throttle.wait(request.name, deadline)
        self._correlation_id = (self._correlation_id + 1) % 2**31
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        frame = request.encode(framed=True, header=True)
        sent = _Sent(self._correlation_id, request, deadline.clock())
        self.used_at = monotonic()
        with self._closing_on_failure(sent, deadline):
            sock = self._open_socket()
            sockets.limit(sock, deadline)
            sock.sendall(frame)
            self._in_flight.append(sent)

    def wait_for_response(self, deadline: Deadline) -> bool:
        """Waits until some of the next answer has come, or the connection has ended; whether one came in time.

        Raises:
            BrokerUnavailable: the connection was closed.
            Interrupted: the deadline's wakeup was set first.
        """
        if self._socket is None:
            raise BrokerUnavailable(f"The connection to broker {self} was closed.")
        return sockets.buffered(self._socket) or wait_ready(self._socket.fileno(), deadline)

    def receive(self, deadline: Deadline) -> Any:
        """The next answer, decoded.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: there is none; the connection is closed.
            Interrupted: the deadline's wakeup was set first; what came so far is kept, and receive() may be called
                again.
        """
        payload = self.receive_raw(deadline)
        try:
            return payload.decode()
        except Exception as error:  # whatever foreign code stumbles over in bytes that make no sense
            raise self._no_response(payload.request) from error

    def receive_raw(self, deadline: Deadline) -> Response:
        """The next answer, not decoded. Raises what :meth:`receive` does."""
        if not self._in_flight:
            raise ProtocolError(f"Nothing was asked of broker {self}, so there is no answer to wait for.")
        sent = self._in_flight[0]
        with self._closing_on_failure(sent, deadline):
            frame, buffer = self._receiver.receive(self._open_socket(), deadline)
            answered = correlation_id(frame)
            if answered != sent.correlation_id:
                raise ProtocolError(f"Broker {self} answered request {answered} where {sent.correlation_id} was due.")
            header = header_size(sent.request, frame)
            if header is None:
                raise self._no_response(sent.request)
            self._in_flight.popleft()
            self.answered_at = monotonic()
            self._answered |= sent.request.API_KEY != ApiVersionsRequest.API_KEY
            payload = Response(sent.request, frame[header:], buffer)
            self._throttle.answered(payload.throttle_time())
            return payload

    def reuse_buffer(self, payload: Response) -> None:
        """Receives a later answer into the memory of ``payload``, of which nothing may be in use any more."""
        self._receiver.reuse(payload.buffer)

    def release_buffers(self) -> None:
        """Keeps no memory for later answers."""
        self._receiver.release_buffers()

    def is_reusable(self) -> bool:
        """Whether a request may be sent and its answer will be the next to come.

        Not so where the broker has closed an idle connection or is about to end its session, or an answer was never
        fetched: that would be taken for the answer to the next request.
        """
        if self._socket is None or self._in_flight or (self._session is not None and self._session.expired()):
            return False
        # With nothing asked, what comes is the end of the stream, or bytes that belong to nothing.
        return sockets.quiet(self._socket)

    def close(self) -> None:
        """Closes the socket; repeating it does no harm."""
        sock, self._socket = self._socket, None
        self._in_flight.clear()
        if sock is not None:
            sock.close()

    def _check_versions(self, deadline: Deadline) -> None:
        answer = self.call(versions.request(), deadline)
        self._throttle.answered(answer.throttle_time_ms / 1000)
        versions.check(answer, str(self))
        self._receiver.max_frame = MAX_FRAME

    def _authenticate(self, settings: Sasl, deadline: Deadline) -> None:
        began = deadline.clock()
        seconds = sasl.authenticate(
            settings, self.host, str(self), lambda request: self.call(request, deadline), deadline
        )
        if seconds is not None:
            self._session = Deadline(began + seconds, deadline.clock)

    def _open_socket(self) -> socket:
        if self._socket is None:
            raise ConnectionResetError("the connection was closed")
        return self._socket

    @contextlib.contextmanager
    def _closing_on_failure(self, sent: _Sent, deadline: Deadline) -> Iterator[None]:
        name = sent.request.name
        try:
            yield
        except Interrupted:
            raise
        except TimeoutError as error:
            self.close()
            waited = deadline.clock() - sent.at
            raise DeadlineExceeded(f"Broker {self} did not answer {name} within {waited:.1f} s.") from error
        except ssl.SSLError as error:
            self.close()
            raise tls.session_trouble(str(self), error, answered=self.answered_at is not None) from error
        except OSError as error:
            self.close()
            action = "" if self._answered or self._speaks_sasl else _NO_SASL
            raise BrokerUnavailable(f"Broker {self} could not be asked {name}: {error}.", action) from error
        except BaseException:
            self.close()
            raise

    def _no_response(self, request: Any) -> ProtocolError:
        self.close()
        return ProtocolError(f"Broker {self} answered {request.name} with bytes that are no response to it.")


def _named(host: str, port: int, broker_id: int | None) -> str:
    where = sockets.address(host, port)
    return where if broker_id is None else f"{broker_id} ({where})"
