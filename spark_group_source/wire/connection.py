"""One blocking socket to one broker, carrying kafka-python's message classes.

This package frames messages itself. It receives a response into one buffer of its size, and decoded records may point
into that buffer, so nothing copies fetched records. Every wait has a deadline. After any failure the connection
closes, because a late response must never pass for the response to the next request.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from socket import socket
from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from spark_group_source.clock import Deadline, monotonic
from spark_group_source.errors import (
    UNSUPPORTED_VERSION,
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
    RetriableError,
)
from spark_group_source.wire import sockets, tcp, versions
from spark_group_source.wire.frames import MAX_FRAME, FrameReader
from spark_group_source.wire.metadata import advertiser, brokers_of
from spark_group_source.wire.reachability import ADDRESSES, EAGER
from spark_group_source.wire.response import Response, correlation_id, header_size
from spark_group_source.wire.security import SignIn
from spark_group_source.wire.throttle import Throttle
from spark_group_source.wire.waiting import Interrupted, wait_ready
from spark_group_source.wire.wire_options import WireOptions

_CHECK_SASL = (
    "Check the port in 'kafka.bootstrap.servers'. If the listener requires SASL, set 'kafka.security.protocol' to"
    " SASL_SSL or SASL_PLAINTEXT."
)


@dataclass(frozen=True, slots=True)
class _InFlight:
    correlation_id: int
    request: Any
    sent_at: float


class Connection:
    """A connection to one broker. Use :meth:`open`.

    ``used_at`` is when the last request was sent, ``responded_at`` when the last response came, in monotonic seconds.
    ``supported`` are the API versions that the broker supports. ``advertised_by`` is the id of the broker that
    advertises the address of the connection, according to the broker at the other end. It is ``None`` before
    :meth:`request_cluster_id`, and if no broker or more than one advertises the address.

    A connection belongs to one thread and one process, because responses have the order of their requests. Neither
    another thread nor a forked child may use the connection.
    """

    def __init__(self, sock: socket, host: str, port: int, options: WireOptions, broker_id: int | None = None) -> None:
        self.host = host
        self.port = port
        self.broker_id = broker_id
        self.advertised_by: int | None = None
        self.used_at = monotonic()
        self.responded_at: float | None = None
        self.supported: versions.Supported = {}
        self._socket: socket | None = sock
        self._client_id = options.client_id
        self._correlation_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._frame_reader = FrameReader(str(self))
        self._throttle = Throttle(str(self))
        self._reauthenticate_by: Deadline | None = None
        self._tls = options.tls
        self._uses_sasl = options.sasl is not None
        self._served = False
        self._is_asking = False
        self._about_cluster: Any = None

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        options: WireOptions,
        deadline: Deadline,
        broker_id: int | None = None,
        *,
        eager: bool = False,
    ) -> Connection:
        """Connects with the TLS and SASL of the options, and checks that the broker knows the versions that the source
        needs.

        Args:
            eager: asks for the cluster before the broker has named its versions, which saves a round trip: each
                supported broker knows the version that is sent. The caller gets the answer by
                :meth:`request_cluster_id`, before it sends anything else. With SASL a broker answers only after the
                sign-in, so this has no effect.

        Raises:
            AuthenticationFailed: one side rejected the other's certificate or credentials.
            BrokerUnavailable: no address of the host accepts connections.
            DeadlineExceeded: connecting took too long.
            ProtocolError: no common version, or the server is not a Kafka broker.
        """
        sock = tcp.connect(host, port, options, deadline)
        with _address_recorded(sock):
            if options.tls is not None:
                sock = options.tls.handshake(sock, host, _peer_name(host, port, broker_id), deadline)
            connection = cls(sock, host, port, options, broker_id)
            try:
                connection._check_versions(options, deadline, eager=eager and options.sasl is None)
                if options.sasl is not None:
                    connection._authenticate(options.sasl, deadline)
                connection._frame_reader.max_frame = MAX_FRAME
            except BaseException:
                connection.close()
                raise
        return connection

    def __str__(self) -> str:
        return _peer_name(self.host, self.port, self.broker_id)

    @property
    def closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket is None

    @property
    def in_flight(self) -> int:
        """The number of requests whose response has not come yet."""
        return len(self._in_flight)

    @property
    def throttle_remaining(self) -> float:
        """Seconds until the broker reads from this connection again; :meth:`send` waits until then."""
        return self._throttle.remaining()

    def fileno(self) -> int:
        """Returns the descriptor on which a selector waits for the next response."""
        return self._open_socket().fileno()

    def call(self, request: Any, deadline: Deadline) -> Any:
        """Sends a request and returns the decoded response. No other request may be in flight."""
        self.send(request, deadline)
        return self.receive(deadline)

    def name_broker(self, broker_id: int) -> None:
        """Makes errors and log lines name the broker with this id."""
        self.broker_id = broker_id
        self._frame_reader.peer = str(self)
        self._throttle.peer = str(self)

    def request_cluster_id(self, deadline: Deadline) -> str | None:
        """Returns the id of the broker's cluster, or ``None`` if it reports none; sets ``advertised_by``.

        Raises the same errors as :meth:`call`.
        """
        response, self._about_cluster = self._about_cluster, None
        if response is None:
            if not self._is_asking:
                self.send(_cluster_request(), deadline)
            response = self.receive(deadline)
        self._is_asking = False
        self.advertised_by = advertiser(brokers_of(response).values(), (self.host, self.port))
        reported: str | None = response.cluster_id
        return reported

    def send(self, request: Any, deadline: Deadline) -> None:
        """Sends a request, a kafka-python message. Responses come in the order of the requests.

        A request without a version gets the highest version that both sides know, up to its ``max_version``. Nothing is
        sent twice.

        Raises:
            ProtocolError: the broker knows no such version.
            BrokerUnavailable: the connection broke, or the broker had closed it.
            DeadlineExceeded: the broker did not accept the request in time. If the broker throttles this client beyond
                the deadline, nothing was sent and the connection stays usable.
            Interrupted: the deadline's wakeup was set while the broker throttled this client. Nothing was sent.
        """
        if not self.closed:
            self._throttle.wait(request.name, deadline)
        self._choose_version(request)
        self._correlation_id = (self._correlation_id + 1) % 2**31
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        frame = request.encode(framed=True, header=True)
        sent = _InFlight(self._correlation_id, request, deadline.clock())
        self.used_at = monotonic()
        with self._close_on_failure(sent, deadline):
            sock = self._open_socket()
            sockets.set_timeout(sock, deadline)
            sock.sendall(frame)
            self._in_flight.append(sent)

    def _choose_version(self, request: Any) -> None:
        if request.API_VERSION is None:
            request.API_VERSION = versions.choose(self.supported, request.API_KEY, str(self), request._max_version)

    def wait_for_response(self, deadline: Deadline) -> bool:
        """Waits until a part of the next response has come, or the connection has ended; returns False at the deadline.

        Raises:
            BrokerUnavailable: the connection was closed.
            Interrupted: the deadline's wakeup was set first.
        """
        if self._socket is None:
            raise BrokerUnavailable(f"The connection to broker {self} was closed.")
        return sockets.has_decrypted_bytes(self._socket) or wait_ready(self._socket.fileno(), deadline)

    def receive(self, deadline: Deadline) -> Any:
        """Returns the next response, decoded.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: no valid response came; the connection is closed.
            Interrupted: the deadline's wakeup was set first. Then receive() may be called again.
        """
        response = self.receive_raw(deadline)
        try:
            return response.decode()
        except Exception as error:  # kafka-python may raise any exception for malformed bytes
            raise self._malformed_response(response.request) from error

    def receive_raw(self, deadline: Deadline) -> Response:
        """Returns the next response, not decoded. Raises the same errors as :meth:`receive`."""
        if not self._in_flight:
            raise ProtocolError(f"No request to broker {self} is in flight, so no response will come.")
        sent = self._in_flight[0]
        with self._close_on_failure(sent, deadline):
            frame, buffer = self._frame_reader.receive(self._open_socket(), deadline)
            received, expected = correlation_id(frame), sent.correlation_id
            if received != expected:
                raise ProtocolError(f"Broker {self} answered request {received} instead of request {expected}.")
            header = header_size(sent.request, frame)
            if header is None:
                raise self._malformed_response(sent.request)
            self._in_flight.popleft()
            self.responded_at = monotonic()
            self._served |= sent.request.API_KEY != ApiVersionsRequest.API_KEY
            response = Response(sent.request, frame[header:], buffer)
            self._throttle.record(response.throttle_time())
            return response

    def reuse_buffer(self, response: Response) -> None:
        """Keeps the buffer of ``response`` for a later response. Nothing may use ``response`` afterwards."""
        self._frame_reader.reuse(response.buffer)

    def release_buffers(self) -> None:
        """Frees the buffers that are kept for later responses."""
        self._frame_reader.release_buffers()

    def is_reusable(self) -> bool:
        """Whether a request may be sent, and the next response will be the response to that request.

        False if the broker has closed the idle connection or is about to end its session. Also False if a response is
        still to come, because it would pass for the response to the next request.
        """
        session_over = self._reauthenticate_by is not None and self._reauthenticate_by.expired()
        if self._socket is None or self._in_flight or session_over:
            return False
        # Without a request in flight, bytes are the end of the stream or belong to no request.
        return sockets.is_idle(self._socket)

    def close(self) -> None:
        """Closes the socket. May be repeated.

        If a request is unanswered, the system drops the bytes that it has not sent yet. Otherwise it would try for
        minutes, and the request could arrive after later requests on the next connection.
        """
        self._close(abort=bool(self._in_flight))

    def reject(self) -> None:
        """Closes the connection to a server that this client cannot use. Later connections try the host's other
        addresses first."""
        remote = None if self._socket is None else sockets.remote_address(self._socket)
        if remote is not None:
            ADDRESSES.record_failure(remote)
        self.close()

    def _close(self, *, abort: bool) -> None:
        sock, self._socket = self._socket, None
        self._in_flight.clear()
        if sock is not None:
            if self._is_asking:
                # A proxy may expect no request before it has answered the first one.
                EAGER.record_failure((self.host, self.port))
            if abort:
                sockets.reset_on_close(sock)
            sock.close()

    def _check_versions(self, options: WireOptions, deadline: Deadline, *, eager: bool = False) -> None:
        self.send(versions.build_request(), deadline)
        if eager:
            lowest, _, _ = versions.KNOWN[ApiKey.Metadata]
            self._is_asking = True
            self.send(_cluster_request(lowest), deadline)
        response = self.receive(deadline)
        if eager and response.error_code == UNSUPPORTED_VERSION:
            self._about_cluster = self.receive(deadline)
        if response.error_code == UNSUPPORTED_VERSION:
            response = self.call(versions.build_request(0), deadline)
        self._throttle.record(response.throttle_time_ms / 1000)
        self.supported = versions.check_response(response, str(self), consumer_protocol=options.consumer_protocol)

    def _authenticate(self, sign_in: SignIn, deadline: Deadline) -> None:
        started_at = deadline.clock()
        host = self.host.removesuffix(".")
        seconds = sign_in.authenticate(host, str(self), lambda request: self.call(request, deadline), deadline)
        if seconds is not None:
            self._reauthenticate_by = Deadline(started_at + seconds, deadline.clock)

    def _open_socket(self) -> socket:
        if self._socket is None:
            raise ConnectionResetError("the connection was closed")
        return self._socket

    @contextlib.contextmanager
    def _close_on_failure(self, sent: _InFlight, deadline: Deadline) -> Iterator[None]:
        name = sent.request.name
        try:
            yield
        except Interrupted:
            raise
        except TimeoutError as error:
            self._close(abort=True)
            waited = deadline.clock() - sent.sent_at
            raise DeadlineExceeded(f"Broker {self} did not answer {name} within {waited:.1f} s.") from error
        except OSError as error:
            self._close(abort=True)
            raise self._failure(name, error) from error
        except BaseException:
            self._close(abort=True)
            raise

    def _failure(self, request: str, error: OSError) -> GroupSourceError:
        if self._tls is not None:
            of_tls = self._tls.session_error(str(self), error, responded=self.responded_at is not None)
            if of_tls is not None:
                return of_tls
        action = "" if self._served or self._uses_sasl else _CHECK_SASL
        return BrokerUnavailable(f"{request} to broker {self} failed: {error}.", action)

    def _malformed_response(self, request: Any) -> ProtocolError:
        self.close()
        return ProtocolError(f"Broker {self} answered {request.name} with bytes that cannot be decoded.")


def _cluster_request(version: int | None = None) -> Any:
    """Asks for the cluster only: without topics the response is small in any cluster."""
    return MetadataRequest(
        version=version, topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )


@contextlib.contextmanager
def _address_recorded(sock: socket) -> Iterator[None]:
    """Records whether this client can use the server at the other end. Later connections try a host's usable addresses
    first.

    Of several addresses, one may have an expired certificate, reject the sign-in or be no broker at all.
    """
    remote = sockets.remote_address(sock)
    try:
        yield
    except (RetriableError, AuthenticationFailed, ProtocolError):
        if remote is not None:
            ADDRESSES.record_failure(remote)
        raise
    if remote is not None:
        ADDRESSES.record_success(remote)


def _peer_name(host: str, port: int, broker_id: int | None) -> str:
    address = sockets.address(host, port)
    return address if broker_id is None else f"{broker_id} ({address})"
