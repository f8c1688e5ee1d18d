"""One HTTP POST request with a limit on time and bytes, whatever the server and a proxy do."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO, Any

from spark_group_source.auth.oauth.endpoint_url import is_local

MAX_BODY = 2**20
"""Maximum bytes to read of a response's body. A response with a token has a few kilobytes."""

MAX_ANSWER = 2 * MAX_BODY
"""Maximum total bytes that the server and a proxy may send, because interim responses and trailers may have no end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of any status. ``date`` is the header with the server's time, or empty."""

    status: int
    body: bytes
    date: str


def post(
    url: str, headers: dict[str, str], body: bytes, timeouts: tuple[float, float], context: ssl.SSLContext | None
) -> Answer:
    """Sends a POST request and returns the response. Follows no redirect.

    Args:
        timeouts: seconds to connect to one address, and for the proxy, TLS, request and response together.
        context: TLS for an https URL.

    Raises:
        OSError: no whole response came in time.
    """
    limit = _TimeLimit(timeouts)
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Http(limit, context)]
        if is_local(url):
            # A proxy is another machine. Java's http.nonProxyHosts has the loopback addresses too.
            handlers.append(urllib.request.ProxyHandler({}))
        return _answer(urllib.request.build_opener(*handlers), request)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if limit.expired:
            raise TimeoutError(f"no whole response within {limit.read_timeout:.1f} s") from None
        raise _as_os_error(error) from None
    finally:
        limit.close()


def _as_os_error(error: Exception) -> OSError:
    reason: object = error
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
    if isinstance(reason, OSError):
        return reason
    text = str(reason)
    if not text:
        text = repr(reason)
    return OSError(text)


def _answer(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> Answer:
    try:
        response = opener.open(request)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        body = response.read(MAX_BODY)
        # With a maximum, Python returns what came before a connection broke.
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return Answer(response.status, body, response.headers.get("Date", ""))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would send the client's secret to another URL, in a request without the body."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class _Http(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, limit: _TimeLimit, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._limit = limit
        self._tls = context

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(self._limit.connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        open_tls = functools.partial(self._limit.connection, http.client.HTTPSConnection, context=self._tls)
        return self.do_open(open_tls, req)


class _TimeLimit:
    """Ends a connection when its time is over, even if the server sends a byte now and then."""

    def __init__(self, timeouts: tuple[float, float]) -> None:
        self.connect_timeout, self.read_timeout = timeouts
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None
        self._received = 0
        self.expired = False

    def connection(self, kind: Any, host: str, **arguments: Any) -> http.client.HTTPConnection:
        """Returns an HTTP connection of this kind that connects with the time limit."""
        connection = kind(host, **arguments)
        connection._create_connection = self._connect
        connection.response_class = functools.partial(_LimitedResponse, limit=self)
        return connection  # type: ignore[no-any-return]

    def record_received(self, size: int) -> None:
        """Counts received bytes.

        Raises:
            OSError: the time is over, or the server sends more than any answer has.
        """
        self._received += size
        # After a shutdown the system still delivers what the server continues to send.
        if self.expired:
            raise TimeoutError
        if self._received > MAX_ANSWER:
            raise OSError(f"the server sent more than {MAX_ANSWER} bytes")

    def close(self) -> None:
        """Frees what is left after the request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._socket is not None:
            self._socket.close()

    def _connect(self, address: tuple[str, int], *_: Any) -> socket.socket:
        sock = socket.create_connection(address, self.connect_timeout)
        sock.settimeout(self.read_timeout)
        # A second socket for the same connection, because the first one may be closed, or wrapped in TLS.
        self._socket = socket.socket(fileno=os.dup(sock.fileno()))
        self._timer = threading.Timer(self.read_timeout, self._expire)
        self._timer.daemon = True
        self._timer.start()
        return sock

    def _expire(self) -> None:
        self.expired = True
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class _LimitedResponse(http.client.HTTPResponse):
    """Reads no more from the connection than its limit allows."""

    def __init__(self, *arguments: Any, limit: _TimeLimit, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = io.BufferedReader(_LimitedReader(self.fp.detach(), limit))


class _LimitedReader(io.RawIOBase):
    def __init__(self, unlimited: io.RawIOBase, limit: _TimeLimit) -> None:
        super().__init__()
        self._unlimited = unlimited
        self._limit = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size = self._unlimited.readinto(buffer)
        self._limit.record_received(size or 0)
        return size

    def close(self) -> None:
        self._unlimited.close()
        super().close()
