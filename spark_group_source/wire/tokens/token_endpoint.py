"""One HTTP request to a token endpoint, through the proxies of the environment."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO, Any

MAX_BODY = 2**20
"""Maximum bytes of a response that are read; a token has a few kilobytes."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for connecting to one address, and for everything after that: proxy, TLS, request and response."""

    connect: float
    read: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of any status. ``date`` is the header with the server's time, or empty."""

    status: int
    body: bytes
    date: str


def post(url: str, headers: dict[str, str], body: bytes, timeouts: Timeouts, context: ssl.SSLContext | None) -> Answer:
    """Sends a POST request and returns the response. Follows no redirect.

    Args:
        context: TLS for an https URL.

    Raises:
        OSError: no whole response came in time.
    """
    limit = _TimeLimit(timeouts)
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Http(limit), _Https(limit, context)]
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        return _answer(urllib.request.build_opener(*handlers), request)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if limit.expired:
            raise TimeoutError(f"no whole response within {timeouts.read:.1f} s") from None
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise (reason if isinstance(reason, OSError) else OSError(str(reason) or repr(reason))) from None
    finally:
        limit.close()


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
    """A redirect would send the client's secret to another URL, in a request without the body."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class _Http(urllib.request.HTTPHandler):
    def __init__(self, limit: _TimeLimit) -> None:
        super().__init__()
        self._limit = limit

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(functools.partial(self._limit.connection, http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, limit: _TimeLimit, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._limit = limit
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> Any:
        open_tls = functools.partial(self._limit.connection, http.client.HTTPSConnection, context=self._tls)
        return self.do_open(open_tls, req)


class _TimeLimit:
    """Ends a connection when its time is over, even if the server sends a byte now and then."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None
        self.expired = False

    def connection(self, kind: Any, host: str, **arguments: Any) -> http.client.HTTPConnection:
        """Returns an HTTP connection of this kind that connects with the time limit."""
        connection = kind(host, **arguments)
        connection._create_connection = self._connect
        return connection  # type: ignore[no-any-return]

    def close(self) -> None:
        """Frees what is left after the request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._socket is not None:
            self._socket.close()

    def _connect(self, address: tuple[str, int], *_: Any) -> socket.socket:
        sock = socket.create_connection(address, self._timeouts.connect)
        sock.settimeout(self._timeouts.read)
        # A socket of its own for the same connection: the other one may be closed, or wrapped in TLS.
        self._socket = socket.socket(fileno=os.dup(sock.fileno()))
        self._timer = threading.Timer(self._timeouts.read, self._expire)
        self._timer.daemon = True
        self._timer.start()
        return sock

    def _expire(self) -> None:
        self.expired = True
        assert self._socket is not None
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
