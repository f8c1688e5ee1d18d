"""SASL over a connection: sends what kafka-python's mechanisms produce with SaslHandshake and SaslAuthenticate.

A broker may end a session after some time (``connections.max.reauth.ms``, or when a token expires). Before that, the
connection stops being reusable, and a new one replaces it. This costs an occasional handshake, but no further code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.tokens import Token
from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    describe_error_code,
)
from spark_group_source.text import printable, some
from spark_group_source.wire.security import Call
from spark_group_source.wire.waiting import call_with_timeout

UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34

SESSION_PART = 0.8
"""Part of a session's lifetime after which the source replaces the connection, so that no request arrives too late."""

MIN_ITERATIONS = 4096
"""Minimum iterations of SCRAM, as in Kafka's brokers and its Java client."""

_TICKET = "Check 'kafka.sasl.kerberos.service.name', and the ticket of this process (klist)."
_PASSWORD = (
    "Check the user name and password, in 'kafka.sasl.jaas.config' or 'kafka.sasl.username' and 'kafka.sasl.password',"
    " and that the user exists for this 'kafka.sasl.mechanism'."
)

_RETRIABLE_KERBEROS_ERRORS = frozenset(
    2529638912 + code
    for code in (
        21,  # KRB5KDC_ERR_CLIENT_NOTYET
        29,  # KRB5KDC_ERR_SVC_UNAVAILABLE
        32,  # KRB5KRB_AP_ERR_TKT_EXPIRED: no KDC issues a new ticket for the keytab, or nobody has called kinit yet
        33,  # KRB5KRB_AP_ERR_TKT_NYV: a clock is ahead
        34,  # KRB5KRB_AP_ERR_REPEAT: the KDC may take a retry for a replay
        156,  # KRB5_KDC_UNREACH
        220,  # KRB5_REALM_CANT_RESOLVE
    )
)
"""Retriable errors of Kerberos, by gssapi's numbers. Names and numbers are those of MIT's krb5.h."""

_OVERLOADED = (
    "The broker did not check the credentials, and the source retries. If the error persists, connect fewer clients or"
    " use larger brokers. Amazon MSK has quotas for connections."
)


def _is_overloaded(message: str) -> bool:
    """Whether a broker has failed an authentication because it has too many connections, as Amazon MSK does."""
    return "too many connects" in message.lower()


def authenticate(settings: Sasl, host: str, broker: str, call: Call, deadline: Deadline) -> float | None:
    """Authenticates this client. Returns after how many seconds the connection must be replaced, or ``None`` for never.

    Args:
        host: the broker's host, for the mechanisms that use it.
        broker: names the broker in errors.

    Raises:
        AuthenticationFailed: the broker rejected the mechanism or the credentials.
        BrokerUnavailable: no token or no ticket is available now, or the broker has too many connections.
        DeadlineExceeded: the token provider or the KDC took too long.
    """
    handshake = call(SaslHandshakeRequest(mechanism=settings.mechanism))
    if handshake.error_code:
        raise _handshake_rejected(settings, broker, handshake)
    token = None
    if settings.token_provider is not None:
        token = settings.token_provider.fetch(deadline)
    mechanism = _mechanism(settings, host, broker, token, deadline)
    lifetime_ms = 0
    while not mechanism.is_done():
        message = _step(settings, broker, mechanism.auth_bytes)
        response = call(SaslAuthenticateRequest(auth_bytes=message))
        if response.error_code:
            raise _rejected(settings, broker, token, response)
        if settings.mechanism.startswith("SCRAM"):
            _check_iterations(settings, broker, response.auth_bytes)
        _step(settings, broker, mechanism.receive, response.auth_bytes)
        lifetime_ms = response.session_lifetime_ms
    if lifetime_ms <= 0:
        return None
    return lifetime_ms / 1000 * SESSION_PART


def _mechanism(settings: Sasl, host: str, broker: str, token: Token | None, deadline: Deadline) -> Any:
    """Returns kafka-python's state machine for one authentication."""
    arguments = _arguments(settings, host, token)

    def begin() -> Any:
        return _step(settings, broker, lambda: get_sasl_mechanism(settings.mechanism)(**arguments))

    if settings.mechanism != "GSSAPI":
        return begin()
    try:
        # The mechanism requests a ticket from a KDC and takes no timeout.
        return call_with_timeout(begin, deadline, f"ticket for {host}")
    except TimeoutError as error:
        raise DeadlineExceeded(f"Kerberos gave no ticket for broker {broker} in time.", _TICKET) from error


def _arguments(settings: Sasl, host: str, token: Token | None) -> dict[str, Any]:
    """The arguments of kafka-python's mechanism."""
    arguments: dict[str, Any] = {"host": host, "sasl_mechanism": settings.mechanism}
    if settings.username is not None and settings.password is not None:
        name = settings.username
        if settings.mechanism.startswith("SCRAM"):
            # RFC 5802: '=' and ',' must be escaped in a name. kafka-python does not escape them.
            name = name.replace("=", "=3D").replace(",", "=2C")
        arguments |= {"sasl_plain_username": name, "sasl_plain_password": settings.password.text}
    if settings.kerberos_service is not None:
        arguments["sasl_kerberos_service_name"] = settings.kerberos_service
    if token is not None:
        arguments["sasl_oauth_token_provider"] = _OneToken(token)
    return arguments


def _check_iterations(settings: Sasl, broker: str, message: bytes) -> None:
    """Raises AuthenticationFailed if the broker's message has too few iterations, before the proof is sent."""
    iterations = _iterations(message)
    if iterations is None:
        return  # the mechanism reports what is missing
    if iterations < MIN_ITERATIONS:
        raise AuthenticationFailed(
            f"Broker {broker} asks for {iterations} iterations of {settings.mechanism}; {MIN_ITERATIONS} is the"
            " minimum.",
            "With fewer iterations, anybody who reads the traffic can soon guess the password. Check which server"
            " answers at this address, or set 'kafka.security.protocol' to SASL_SSL.",
        )


def _iterations(message: bytes) -> int | None:
    """The field ``i`` of a SCRAM message, ``None`` without a valid one."""
    iterations = ""
    for field in message.decode(errors="replace").split(","):
        name, _, value = field.partition("=")
        if name == "i":
            iterations = value
    try:
        return int(iterations)
    except ValueError:
        return None


def _step(settings: Sasl, broker: str, step: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except UnicodeError:
        # Neither the error's text nor its cause may appear: they may hold the user name, the password or a token.
        text = "a message"
        if settings.password is not None:
            text = "the user name, the password or a message of the broker"
        raise AuthenticationFailed(
            f"Authentication at broker {broker} by {settings.mechanism} failed: {text} is not UTF-8 text.",
            _advice(settings),
        ) from None
    except Exception as error:  # a mechanism's library may raise any exception
        happened = f"Authentication at broker {broker} by {settings.mechanism} failed: {printable(repr(error))}."
        if getattr(error, "min_code", None) in _RETRIABLE_KERBEROS_ERRORS:
            raise BrokerUnavailable(happened, _advice(settings)) from error
        raise AuthenticationFailed(happened, _advice(settings)) from error


class _OneToken(AbstractTokenProvider):  # type: ignore[misc]
    """A token for kafka-python's mechanism."""

    def __init__(self, token: Token) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token.text

    def extensions(self) -> Mapping[str, str]:
        return self._token.extensions


def _advice(settings: Sasl) -> str:
    """What to check after the credentials were rejected."""
    if settings.token_provider is not None:
        return settings.token_provider.advice
    if settings.mechanism == "GSSAPI":
        return _TICKET
    return _PASSWORD


def _rejected(settings: Sasl, broker: str, token: Token | None, response: Any) -> GroupSourceError:
    """Converts the response of a broker that ended the authentication."""
    message = printable(response.error_message or describe_error_code(response.error_code))
    if _is_overloaded(message):
        return BrokerUnavailable(f"Broker {broker} accepts no further connection now: {message}.", _OVERLOADED)
    if settings.token_provider is not None and token is not None:
        settings.token_provider.record_rejection(token)
    happened = f"Broker {broker} rejected this client's credentials ({settings.mechanism}): {message}."
    return AuthenticationFailed(happened, _advice(settings))


def _handshake_rejected(settings: Sasl, broker: str, response: Any) -> AuthenticationFailed:
    if response.error_code == UNSUPPORTED_SASL_MECHANISM:
        enabled = "none"
        if response.mechanisms:
            enabled = some([printable(each) for each in response.mechanisms])
        return AuthenticationFailed(
            f"Broker {broker} does not enable '{settings.mechanism}' on this listener. It enables: {enabled}.",
            "Set 'kafka.sasl.mechanism' to one of these, or use the port of another listener.",
        )
    if response.error_code == ILLEGAL_SASL_STATE:
        return AuthenticationFailed(
            f"Broker {broker} does not use SASL on this listener.",
            "Set 'kafka.security.protocol' to PLAINTEXT or SSL, or use the port of another listener.",
        )
    return AuthenticationFailed(
        f"Broker {broker} rejected the SASL handshake: {describe_error_code(response.error_code)}."
    )
