"""Requests for a token to a token endpoint, by the grant ``client_credentials``."""

from __future__ import annotations

import base64
import ssl
import time
import urllib.parse

from spark_group_source.auth.certificates import ssl_context
from spark_group_source.auth.oauth.client import ClientCredentials, endpoint_name
from spark_group_source.auth.oauth.http_post import Answer, post
from spark_group_source.auth.oauth.token import IssuedToken
from spark_group_source.auth.oauth.token_response import UnusableAnswer, read_error, read_token
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_session import Peer, handshake_error
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, GroupSourceError, OptionError
from spark_group_source.text import printable

_OK = (200, 201)
_RETRIABLE = (408, 425, 429)
"""Statuses below 500 that a service under load returns."""
_NEVER = (501, 505)
"""Statuses of 500 and above that a retry does not change."""

MIN_KEY = 8
"""Minimum characters of a value in the endpoint's URL that may be a key. Hiding shorter values would garble the
text."""

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


def request_token(settings: ClientCredentials, *, worked_before: bool) -> IssuedToken:
    """Requests a token once.

    Args:
        worked_before: the endpoint has given a token to this process. If so, an answer that is not OAuth's comes from a
            proxy, or from a service that is being changed, and a retry may succeed.

    Raises:
        AuthenticationFailed: the endpoint rejected the client. Or its answer is unusable, and no earlier answer was
            usable.
        BrokerUnavailable: a retry may succeed.
    """
    unusable: type[GroupSourceError] = AuthenticationFailed
    if worked_before:
        unusable = BrokerUnavailable
    answer = _request(settings, unusable)
    if answer.status not in _OK:
        raise _refusal(settings, answer, unusable)
    try:
        return read_token(answer.body, answer.date, time.time(), settings.subject_claim, settings.scope_claim)
    except UnusableAnswer as problem:
        raise unusable(f"The {endpoint_name(settings)} {problem}.", _ANSWER) from None


def _request(settings: ClientCredentials, unusable: type[GroupSourceError]) -> Answer:
    """Sends the request. Raises ``unusable`` if only other settings of TLS help, BrokerUnavailable if a retry may."""
    timeouts = settings.connect_timeout, settings.read_timeout
    try:
        context = None
        if settings.tls is not None:
            context = ssl_context(settings.tls)
        return post(settings.endpoint, _headers(settings), _body(settings), timeouts, context)
    except OptionError as error:
        raise unusable(error.happened, error.action) from None
    except ssl.SSLError as error:
        raise _tls_failure(settings, error, unusable) from None
    except OSError as error:
        happened = f"The {endpoint_name(settings)} cannot be reached: {printable(str(error))}."
        raise BrokerUnavailable(happened, _URL) from None


def _tls_failure(
    settings: ClientCredentials, error: ssl.SSLError, unusable: type[GroupSourceError]
) -> GroupSourceError:
    tls = settings.tls
    if tls is None:
        tls = Tls()
    failed = handshake_error(Peer(f"The {endpoint_name(settings)}", _URL, _HOST), error, tls)
    if isinstance(failed, AuthenticationFailed):
        return unusable(failed.happened, failed.action)
    return failed


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
    form = {"grant_type": "client_credentials"}
    if settings.scope:
        form["scope"] = settings.scope
    return urllib.parse.urlencode(form).encode()


def _refusal(settings: ClientCredentials, answer: Answer, unusable: type[GroupSourceError]) -> GroupSourceError:
    error, description = read_error(answer.body)
    text = _shown(settings, _joined(error, description))
    happened = f"The {endpoint_name(settings)} answered HTTP status {answer.status}."
    if text:
        happened = f"The {endpoint_name(settings)} answered HTTP status {answer.status} ({text})."
    if _is_retriable(answer.status):
        return BrokerUnavailable(happened, _CHECK_PROVIDER)
    if error or answer.status in (401, 403):
        return AuthenticationFailed(happened, _ACTIONS.get(error, _CLIENT))
    return unusable(happened, _URL)


def _joined(error: str, description: str) -> str:
    if not error:
        return description
    if not description:
        return error
    return f"{error}: {description}"


def _is_retriable(status: int) -> bool:
    if status < 500:
        return status in _RETRIABLE
    return status not in _NEVER


def _shown(settings: ClientCredentials, text: str) -> str:
    """The server's text without the client's secret and without keys in the URL, which a server may repeat."""
    secret, query = settings.client_secret.text, urllib.parse.urlsplit(settings.endpoint).query
    hidden = [secret, urllib.parse.quote_plus(secret), urllib.parse.quote(secret, safe=""), _credentials(settings)]
    hidden.append(query)
    for _, value in urllib.parse.parse_qsl(query):
        if len(value) >= MIN_KEY:
            hidden.append(value)
    # The longest first, because a shorter text may be a part of it.
    for part in sorted(hidden, key=len, reverse=True):
        if part:
            text = text.replace(part, "...")
    return printable(text)
