"""SASL over a connection: kafka-python's mechanisms, which do no I/O, between SaslHandshake and SaslAuthenticate.

A broker may end a session after some time (``connections.max.reauth.ms``, or when a token ends). Then the connection
is replaced by a new one before that: it counts as no longer usable. That is a handshake now and then, and needs nothing
that a first connection does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import describe
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded
from spark_group_source.user_code import load
from spark_group_source.wire import versions
from spark_group_source.wire.settings import Sasl
from spark_group_source.wire.waiting import call_with_timeout

UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34

SESSION_PART = 0.8
"""Part of a session's life after which its connection is replaced: a request on its way must not come too late."""

_CREDENTIALS = {
    "OAUTHBEARER": "Check what 'kafka.sasl.oauthbearer.token.provider' returns.",
    "GSSAPI": "Check 'kafka.sasl.kerberos.service.name', and the ticket of this process (klist).",
}
_PASSWORD = (
    "Check the user name and password, in 'kafka.sasl.jaas.config' or 'kafka.sasl.username' and 'kafka.sasl.password',"
    " and that the user exists for this 'kafka.sasl.mechanism'."
)

_KERBEROS_PASSES = frozenset(
    2529638912 + code
    for code in (
        21,  # KRB5KDC_ERR_CLIENT_NOTYET
        29,  # KRB5KDC_ERR_SVC_UNAVAILABLE
        32,  # KRB5KRB_AP_ERR_TKT_EXPIRED: no KDC gives a new one by the keytab, or nobody has called kinit yet
        33,  # KRB5KRB_AP_ERR_TKT_NYV: of a clock that is ahead
        34,  # KRB5KRB_AP_ERR_REPEAT: what looks like a replay may be none
        156,  # KRB5_KDC_UNREACH
        220,  # KRB5_REALM_CANT_RESOLVE
    )
)
"""Errors of Kerberos that may pass, as gssapi numbers them; names and numbers are those of MIT's krb5.h."""

Ask = Callable[[Any], Any]
"""Sends a request and returns its answer."""


def authenticate(settings: Sasl, host: str, broker: str, ask: Ask, deadline: Deadline) -> float | None:
    """Tells a broker who this client is; returns the seconds after which the connection must be replaced, if any.

    Args:
        host: the broker's, for the mechanisms that name it.
        broker: what errors call it.

    Raises:
        AuthenticationFailed: the broker refused the mechanism or the credentials.
        BrokerUnavailable: the function that provides tokens failed, or no ticket can be had for now.
        DeadlineExceeded: it took too long.
    """
    handshake = ask(SaslHandshakeRequest(version=versions.SASL_HANDSHAKE, mechanism=settings.mechanism))
    if handshake.error_code:
        raise _no_mechanism(settings, broker, handshake)
    mechanism = _mechanism(settings, host, broker, deadline)
    lifetime = 0
    while not mechanism.is_done():
        told = _step(settings, broker, mechanism.auth_bytes)
        answer = ask(SaslAuthenticateRequest(version=versions.SASL_AUTHENTICATE, auth_bytes=told))
        if answer.error_code:
            raise AuthenticationFailed(
                f"Broker {broker} refused to authenticate this client by {settings.mechanism}:"
                f" {answer.error_message or describe(answer.error_code)}.",
                _CREDENTIALS.get(settings.mechanism, _PASSWORD),
            )
        _step(settings, broker, mechanism.receive, answer.auth_bytes)
        lifetime = answer.session_lifetime_ms
    return lifetime / 1000 * SESSION_PART if lifetime > 0 else None


def _mechanism(settings: Sasl, host: str, broker: str, deadline: Deadline) -> Any:
    """kafka-python's state machine for one authentication."""
    given: dict[str, Any] = {"host": host, "sasl_mechanism": settings.mechanism}
    if settings.username is not None and settings.password is not None:
        name = settings.username
        if settings.mechanism.startswith("SCRAM"):
            # RFC 5802: these two have a meaning in its messages. kafka-python sends the name as it is.
            name = name.replace("=", "=3D").replace(",", "=2C")
        given |= {"sasl_plain_username": name, "sasl_plain_password": settings.password.text}
    if settings.kerberos_service is not None:
        given["sasl_kerberos_service_name"] = settings.kerberos_service
    if settings.token_provider is not None:
        given["sasl_oauth_token_provider"] = _Token(settings.token_provider, deadline)

    def begin() -> Any:
        return _step(settings, broker, lambda: get_sasl_mechanism(settings.mechanism)(**given))

    if settings.mechanism != "GSSAPI":
        return begin()
    try:
        # It asks a KDC for a ticket, and knows no deadline.
        return call_with_timeout(begin, deadline, f"ticket for {host}")
    except TimeoutError as error:
        raise DeadlineExceeded(f"Kerberos gave no ticket for broker {broker} in time.") from error


def _step(settings: Sasl, broker: str, step: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except UnicodeError:
        # Not in its words, nor as the cause: it holds the text, which is the user name or the password.
        raise AuthenticationFailed(
            f"Authentication at broker {broker} by {settings.mechanism} failed: the user name or password is no text in"
            " UTF-8.",
            _PASSWORD,
        ) from None
    except Exception as error:  # whatever a mechanism's library raises
        happened = f"Authentication at broker {broker} by {settings.mechanism} failed: {error!r}."
        kind = BrokerUnavailable if getattr(error, "min_code", None) in _KERBEROS_PASSES else AuthenticationFailed
        raise kind(happened, _CREDENTIALS.get(settings.mechanism, _PASSWORD)) from error


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    """One token of the user's function, for kafka-python's mechanism."""

    def __init__(self, path: str, deadline: Deadline) -> None:
        super().__init__()
        self._token, self._extensions = token(path, deadline)

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


def token(path: str, deadline: Deadline) -> tuple[str, dict[str, str]]:
    """The token and the SASL extensions that the user's function returns: a text, or a pair of text and dict.

    Raises:
        AuthenticationFailed: it returned something else.
        BrokerUnavailable: it failed. Another try may succeed: where tokens come from may be down for a while.
        DeadlineExceeded: it did not return in time.
    """
    name = f"The function '{path}' of 'kafka.sasl.oauthbearer.token.provider'"
    try:
        answer = call_with_timeout(load(path, "function"), deadline, path)
    except TimeoutError as error:
        raise DeadlineExceeded(f"{name} did not return in time.") from error
    except (Exception, SystemExit) as error:
        raise BrokerUnavailable(f"{name} failed: {error!r}.") from error
    found, extensions = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
    if not isinstance(found, str) or not found.strip() or not isinstance(extensions, dict):
        raise AuthenticationFailed(
            f"{name} returned a {type(answer).__name__}.",
            "It must return the token as text, or a pair of it and a dict of SASL extensions.",
        )
    # One that was read from a file ends with a line break, which no broker takes.
    return found.strip(), extensions


def _no_mechanism(settings: Sasl, broker: str, handshake: Any) -> AuthenticationFailed:
    if handshake.error_code == UNSUPPORTED_SASL_MECHANISM:
        happened = f"Broker {broker} does not take '{settings.mechanism}' on this listener"
        return AuthenticationFailed(
            f"{happened}, but {', '.join(handshake.mechanisms) or 'no other either'}.",
            "Set 'kafka.sasl.mechanism' to one of these, or take the port of another listener.",
        )
    if handshake.error_code == ILLEGAL_SASL_STATE:
        return AuthenticationFailed(
            f"Broker {broker} takes no SASL on this listener.",
            "Set 'kafka.security.protocol' to PLAINTEXT or SSL, or take the port of another listener.",
        )
    return AuthenticationFailed(f"Broker {broker} refused SASL: {describe(handshake.error_code)}.")
