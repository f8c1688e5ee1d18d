"""Tokens by the grant ``client_credentials``: one HTTP request to the token endpoint, its answer, and the token that
this process keeps. All connections share it, and a thread renews it before its end.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import functools
import http.client
import io
import json
import logging
import math
import os
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from spark_group_source.auth.certificates import ssl_context
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_session import Peer, handshake_error
from spark_group_source.auth.tokens import ClientCredentials, RefreshWindow, is_local, without_secrets
from spark_group_source.clock import WARN_EVERY, Backoff, Clock, Deadline, LogEvery, monotonic
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    OptionError,
)
from spark_group_source.text import Secret, printable
from spark_group_source.wire.security import ExportedToken
from spark_group_source.wire.waiting import JOIN_INTERVAL, sleep

log = logging.getLogger(__name__)

EXPIRY_MARGIN = 1.0
"""How many seconds before its end a token is not used any more, but at most a tenth of its lifetime. The broker must
receive it in time, and the times of tokens are whole seconds."""

IDLE_TIMEOUT = 3600.0
"""How many seconds without a new connection end the renewals, for example in a process whose query has ended."""

_REACH_ENDPOINT = "Check that this machine can reach it, and that it answers within seconds."
_THREADS = "Raise the limit of threads or processes of this user or container."


@dataclass(frozen=True, slots=True, repr=False)
class IssuedToken:
    """A token from a service: ``text`` is a secret, ``lifetime`` counts seconds, ``holder`` is for the log."""

    text: str
    lifetime: float
    holder: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class _Kept:
    """``usable_until`` is shortly before the token's end."""

    text: str
    usable_until: float
    refresh_at: float


class TokenCache:
    """The token of one provider in this process. Caller: any thread.

    All requests run in one thread, so that one request serves all connections, and one that hangs blocks one thread.

    Args:
        request: asks for a token, and takes a limited time; gets whether an earlier request succeeded.
        name: names the provider in errors and log lines.
        backoff: the first and the maximum seconds between requests that fail.
    """

    def __init__(
        self,
        request: Callable[[bool], IssuedToken],
        name: str,
        window: RefreshWindow,
        backoff: tuple[float, float],
        clock: Clock = monotonic,
    ) -> None:
        self._request = request
        self._name = name
        self._window = window
        self._backoff_limits = backoff
        self._clock = clock
        # Guards everything below.
        self._condition = threading.Condition()
        self._running = False
        self._requesting = False
        self._requested_at = 0.0
        self._kept: _Kept | None = None
        self._answers = 0
        self._error: GroupSourceError | None = None
        self._failures = 0
        self._backoff = Backoff(*backoff)
        self._retry_at = 0.0
        self._used_at = clock()
        self._warnings = LogEvery(WARN_EVERY, clock)

    def fetch(self, deadline: Deadline) -> str:
        """Returns the kept token; waits for a new one only if none is valid.

        Raises:
            DeadlineExceeded: no answer came in time.
            GroupSourceError: the last request failed; until the backoff has passed, without another request.
            Interrupted: the deadline's wakeup was set first.
        """
        with self._condition:
            self._used_at = self._clock()
            answers = self._answers
            while True:
                kept = self._valid()
                if kept is not None:
                    if self._clock() >= kept.refresh_at:
                        self._ensure_running()
                    return kept.text
                backing_off = not self._requesting and self._clock() < self._retry_at
                if self._error is not None and (backing_off or self._answers != answers):
                    raise type(self._error)(self._error.happened, self._error.action) from self._error
                self._ensure_running()
                if deadline.expired():
                    raise DeadlineExceeded(f"{self._name} did not answer in time.", _REACH_ENDPOINT)
                self._condition.wait(min(JOIN_INTERVAL, deadline.remaining()))
                sleep(0.0, deadline)

    def record_rejection(self, text: str) -> None:
        """Renews the kept token early if a broker rejected it, for example because the provider changed its keys.

        The token stays in use until a new one comes, because other brokers may accept it.
        """
        with self._condition:
            kept = self._kept
            if kept is None or kept.text != text:
                return
            # A broker that rejects every token must not cause more requests than a failing provider.
            self._kept = _Kept(kept.text, kept.usable_until, max(self._clock(), self._retry_at))
            self._condition.notify_all()

    def export(self) -> ExportedToken | None:
        """Returns the kept token for other processes, or ``None`` if none is valid.

        This counts as a use: the tasks of a query need a token also when the driver opens no connection any more.
        """
        with self._condition:
            self._used_at = now = self._clock()
            kept, shift = self._valid(), time.time() - now
            due = self._kept is not None and now >= max(self._kept.refresh_at, self._retry_at)
            if due:
                with contextlib.suppress(BrokerUnavailable):  # the next connection reports it
                    self._ensure_running()
            if kept is None:
                return None
            # The process that shares it renews it first, and shares the new one with the next task.
            refresh_at = (kept.refresh_at + kept.usable_until) / 2
            return ExportedToken(Secret(kept.text), kept.usable_until + shift, refresh_at + shift)

    def import_(self, shared: ExportedToken) -> None:
        """Keeps the token of another process, unless the kept one is valid for longer."""
        with self._condition:
            shift = self._clock() - time.time()
            usable_until = shared.usable_until + shift
            if usable_until > self._clock() and (self._kept is None or self._kept.usable_until < usable_until):
                self._kept = _Kept(shared.text.text, usable_until, shared.refresh_at + shift)
                self._error, self._failures = None, 0
                self._condition.notify_all()

    def _valid(self) -> _Kept | None:
        kept = self._kept
        return kept if kept is not None and self._clock() < kept.usable_until else None

    def _ensure_running(self) -> None:
        if self._running:
            return
        try:
            threading.Thread(target=self._run, name="oauth-token", daemon=True).start()
        except RuntimeError as error:
            raise BrokerUnavailable(f"No thread for requests to {self._name}: {error}.", _THREADS) from error
        self._running = True

    def _run(self) -> None:
        """Requests a token when one is due, until there is nothing to wait for."""
        while True:
            outcome = self._ask()
            with self._condition:
                self._record(outcome)
                if not self._wait_until_due():
                    self._running = False
                    return

    def _ask(self) -> IssuedToken | GroupSourceError:
        with self._condition:
            self._requesting, self._requested_at = True, self._clock()
            worked_before = self._kept is not None
        try:
            return self._request(worked_before)
        except GroupSourceError as error:
            return error
        except Exception as error:  # waiting threads must learn of any failure; its text may hold a secret
            return BrokerUnavailable(f"A request to {self._name} failed: {type(error).__name__}.", _REACH_ENDPOINT)

    def _record(self, outcome: IssuedToken | GroupSourceError) -> None:
        now = self._clock()
        self._requesting = False
        self._answers += 1
        if isinstance(outcome, IssuedToken):
            if self._failures:
                log.info("%s answers again after %d failed requests", self._name, self._failures)
            log.info("%s issued a token%s for %.0f s", self._name, outcome.holder, outcome.lifetime)
            margin = min(EXPIRY_MARGIN, outcome.lifetime / 10)
            refresh_after = min(self._window.delay(outcome.lifetime), outcome.lifetime - 2 * margin)
            # From the request on: the service counts from some time before its answer arrives.
            begin = self._requested_at
            self._kept = _Kept(outcome.text, begin + outcome.lifetime - margin, begin + refresh_after)
            self._error, self._failures = None, 0
            self._warnings = LogEvery(WARN_EVERY, self._clock)
            self._backoff = Backoff(*self._backoff_limits)
            self._retry_at = now + self._backoff_limits[1]
        else:
            self._error = outcome
            self._failures += 1
            self._retry_at = now + self._backoff.next()
            self._warn(now)
        self._condition.notify_all()

    def _warn(self, now: float) -> None:
        """Without a valid token the caller of :meth:`fetch` gets the error, and no warning is needed."""
        kept = self._valid()
        if kept is None or not self._warnings.try_acquire():
            return
        log.warning(
            "%d requests for a new token failed in a row; the old token is valid for %.0f s; retrying: %s",
            self._failures,
            kept.usable_until - now,
            self._error,
        )

    def _wait_until_due(self) -> bool:
        """Waits until a request is due; returns False if only the next :meth:`fetch` needs one."""
        while True:
            now = self._clock()
            if self._valid() is None or now - self._used_at > IDLE_TIMEOUT:
                return False
            assert self._kept is not None
            due_at = self._retry_at if self._failures else self._kept.refresh_at
            if now >= due_at:
                return True
            self._condition.wait(due_at - now)


MAX_LIFETIME = 30 * 86400.0
"""Longest lifetime in seconds that is relied on; a service may name any number."""

CLOCK_TOLERANCE = 30.0
"""Seconds between this clock and the server's from which on an error mentions the difference."""

_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
"""The characters that brokers accept in a token (RFC 6750)."""


class UnusableAnswer(Exception):
    """The answer holds no usable token. The text completes "The token endpoint ...", and shows nothing of a token."""


def read_token(
    body: bytes, date: str, now: float, subject_claim: str = "sub", scope_claim: str = "scope"
) -> IssuedToken:
    """Returns the token of a successful answer.

    Args:
        date: the server's time as an HTTP date, or empty. Lifetimes are counted from it: this clock may be wrong.
        now: this clock, in seconds since 1970.

    Raises:
        UnusableAnswer: it holds no token that is valid for a while.
    """
    fields = _json_object(body)
    if fields is None:
        raise UnusableAnswer("answered with a text that is not a JSON object")
    found = [fields.get(key) for key in ("access_token", "id_token")]  # the second as Kafka's Java client does
    text = next((each.strip() for each in found if isinstance(each, str) and each.strip()), None)
    if text is None:
        raise UnusableAnswer("answered without an access_token")
    if not _TOKEN.fullmatch(text):
        raise UnusableAnswer("issued a token with characters that no token may have")
    claims = token_claims(text)
    server_now = _seconds(date, now)
    lifetimes = _lifetimes(fields.get("expires_in"), None if claims is None else claims.get("exp"), server_now)
    if not lifetimes:
        problem = "is not a JWT" if claims is None else "has no claim exp"
        raise UnusableAnswer(f"issued a token without an end: it {problem}, and the answer has no expires_in")
    lifetime = min(*lifetimes, MAX_LIFETIME)
    if lifetime <= EXPIRY_MARGIN:
        raise UnusableAnswer(_expired(lifetime, server_now, now))
    return IssuedToken(text, lifetime, _holder(claims or {}, subject_claim, scope_claim))


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def token_claims(text: str) -> Mapping[str, Any] | None:
    """Returns the claims of a JWT without a check of its signature, or ``None`` for another token."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        return _json_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None


def read_error(body: bytes) -> tuple[str, str]:
    """Returns the error and its description as RFC 6749 or Okta names them; empty texts without them."""
    fields = _json_object(body) or {}
    error = fields.get("error") or fields.get("errorCode") or ""
    description = fields.get("error_description") or fields.get("errorSummary") or ""
    return str(error), str(description)


def _lifetimes(expires_in: object, expiry: object, server_now: float) -> list[float]:
    found = [_number(expires_in), None if (end := _number(expiry)) is None else end - server_now]
    return [each for each in found if each is not None]


def _number(value: object) -> float | None:
    """A finite number; some services write it as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seconds(date: str, default: float) -> float:
    """An HTTP date in seconds since 1970."""
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return default


def _expired(lifetime: float, server_now: float, now: float) -> str:
    if lifetime > 0:
        happened = f"issued a token that is valid for {lifetime:.1f} s only"
    else:
        happened = f"issued a token that expired {abs(lifetime):.0f} s ago"
    ahead = now - server_now
    if abs(ahead) < CLOCK_TOLERANCE:
        return happened
    return (
        f"{happened}; the clock of this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} its clock"
    )


def _holder(claims: Mapping[str, Any], subject_claim: str, scope_claim: str) -> str:
    """What the log says of a token, without its text."""
    subject, scope = claims.get(subject_claim), claims.get(scope_claim)
    scopes = " ".join(map(str, scope)) if isinstance(scope, list) else scope
    of_whom = f" of {printable(repr(subject))}" if subject else ""
    return of_whom + (f" with scope {printable(repr(scopes))}" if scopes else "")


MAX_BODY = 2**20
"""Maximum bytes of a response's body that are read; a token has a few kilobytes."""

MAX_ANSWER = 2 * MAX_BODY
"""Maximum bytes of all that the server and a proxy send: interim responses and trailers may have no end."""


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
        timeouts: seconds to connect to one address, and for all after that: proxy, TLS, request and response.
        context: TLS for an https URL.

    Raises:
        OSError: no whole response came in time.
    """
    limit = _TimeLimit(timeouts)
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), _Http(limit, context)]
        if is_local(url):
            # As in Java, whose http.nonProxyHosts has the loopback addresses: the proxy is another machine.
            handlers.append(urllib.request.ProxyHandler({}))
        return _answer(urllib.request.build_opener(*handlers), request)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if limit.expired:
            raise TimeoutError(f"no whole response within {limit.read_timeout:.1f} s") from None
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
        # A socket of its own for the same connection: the other one may be closed, or wrapped in TLS.
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


_OK = (200, 201)
_RETRIABLE = (408, 425, 429)
"""Statuses below 500 that a service under load returns."""
_NEVER = (501, 505)
"""Statuses from 500 on that a retry does not change."""

MIN_KEY = 8
"""Minimum characters of a value in the endpoint's URL that may be a key. To hide shorter ones would garble the text."""

_CLIENT = (
    "Check 'kafka.sasl.oauthbearer.client.credentials.client.id' and"
    " 'kafka.sasl.oauthbearer.client.credentials.client.secret', or clientId and clientSecret in"
    " 'kafka.sasl.jaas.config'. If they have special characters, the service may need"
    " 'kafka.sasl.oauthbearer.header.urlencode'."
)
_SCOPE = "Check 'kafka.sasl.oauthbearer.scope', or scope in 'kafka.sasl.jaas.config'."
_URL = "Check 'kafka.sasl.oauthbearer.token.endpoint.url'."
_HOST = "Use a host name of the certificate in 'kafka.sasl.oauthbearer.token.endpoint.url'"
_GRANT = "Allow the grant client_credentials for this client at the identity provider."
_CHECK_PROVIDER = "Check that the identity provider works."
_ANSWER = "Check 'kafka.sasl.oauthbearer.token.endpoint.url', and the lifetime of tokens at the identity provider."
_ACTIONS = {
    "invalid_client": _CLIENT,
    "invalid_scope": _SCOPE,
    "unauthorized_client": _GRANT,
    "unsupported_grant_type": _GRANT,
}


def endpoint_name(settings: ClientCredentials) -> str:
    """Names the endpoint in errors and log lines, without the query of its URL, in which some services expect a key."""
    return f"The token endpoint {without_secrets(settings.endpoint)}"


def request_token(settings: ClientCredentials, *, worked_before: bool) -> IssuedToken:
    """Requests a token once.

    Args:
        worked_before: the endpoint has given a token to this process. Any other answer than OAuth's comes from a
            proxy, or from a service that is being changed, and a retry may succeed.

    Raises:
        AuthenticationFailed: the endpoint rejected the client; or its answer is unusable, and none was usable before.
        BrokerUnavailable: a retry may succeed.
    """
    name = endpoint_name(settings)
    unusable = BrokerUnavailable if worked_before else AuthenticationFailed
    timeouts = settings.connect_timeout, settings.read_timeout
    try:
        context = None if settings.tls is None else ssl_context(settings.tls)
        answer = post(settings.endpoint, _headers(settings), _body(settings), timeouts, context)
    except OptionError as error:
        raise unusable(error.happened, error.action) from None
    except ssl.SSLError as error:
        failed = handshake_error(Peer(name, _URL, _HOST), error, settings.tls or Tls())
        kind = unusable if isinstance(failed, AuthenticationFailed) else BrokerUnavailable
        raise kind(failed.happened, failed.action) from None
    except OSError as error:
        raise BrokerUnavailable(f"{name} cannot be reached: {printable(str(error))}.", _URL) from None
    if answer.status not in _OK:
        raise _refusal(settings, answer, unusable)
    try:
        return read_token(answer.body, answer.date, time.time(), settings.subject_claim, settings.scope_claim)
    except UnusableAnswer as problem:
        raise unusable(f"{name} {problem}.", _ANSWER) from None


def _headers(settings: ClientCredentials) -> dict[str, str]:
    return {
        "Accept": "application/json",
        "Authorization": f"Basic {_credentials(settings)}",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _credentials(settings: ClientCredentials) -> str:
    name, secret = settings.client_id, settings.client_secret.text
    if settings.encode_header:
        name, secret = urllib.parse.quote_plus(name), urllib.parse.quote_plus(secret)
    return base64.b64encode(f"{name}:{secret}".encode()).decode()


def _body(settings: ClientCredentials) -> bytes:
    form = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    return urllib.parse.urlencode(form).encode()


def _refusal(settings: ClientCredentials, answer: Answer, unusable: type[GroupSourceError]) -> GroupSourceError:
    error, description = read_error(answer.body)
    text = _shown(settings, ": ".join(filter(None, (error, description))))
    happened = f"{endpoint_name(settings)} answered HTTP status {answer.status}" + (f" ({text})." if text else ".")
    if answer.status in _RETRIABLE or (answer.status >= 500 and answer.status not in _NEVER):
        return BrokerUnavailable(happened, _CHECK_PROVIDER)
    if error or answer.status in (401, 403):
        return AuthenticationFailed(happened, _ACTIONS.get(error, _CLIENT))
    return unusable(happened, _URL)


def _shown(settings: ClientCredentials, text: str) -> str:
    """The server's text without the client's secret and keys in the URL, which a server may repeat."""
    secret, query = settings.client_secret.text, urllib.parse.urlsplit(settings.endpoint).query
    hidden = [secret, urllib.parse.quote_plus(secret), urllib.parse.quote(secret, safe=""), _credentials(settings)]
    hidden += [query, *(value for _, value in urllib.parse.parse_qsl(query) if len(value) >= MIN_KEY)]
    # The longest first: a shorter text may be a part of it.
    for part in sorted(filter(None, hidden), key=len, reverse=True):
        text = text.replace(part, "...")
    return printable(text)
