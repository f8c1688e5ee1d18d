"""Providers of tokens for SASL: a file, a function of the user, an OAuth client, Amazon MSK.

The window in which a token is renewed follows Kafka's Java client (``sasl.login.refresh.*``). The driver's OAuth token
travels with its tasks: a new Python worker needs no request, and no token service that it can reach.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import socket
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, OptionError
from spark_group_source.text import Secret
from spark_group_source.user_code import load
from spark_group_source.wire.waiting import call_with_timeout

if TYPE_CHECKING:
    from spark_group_source.auth.oauth.endpoint import TokenCache
    from spark_group_source.auth.tls import Tls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token and the SASL extensions that a client sends with it. ``text`` is a secret."""

    text: str
    extensions: Mapping[str, str] = field(default_factory=dict)


class TokenProvider(Protocol):
    """Provides the token of each new connection.

    A provider is picklable, and equal to every provider with the same settings: it travels with the tasks as a part of
    :class:`spark_group_source.wire.settings.Sasl`. A provider that keeps tokens therefore keeps them elsewhere.
    """

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""

    def fetch(self, deadline: Deadline) -> Token:
        """Returns a valid token. Caller: any thread, once for each new connection.

        Raises:
            AuthenticationFailed: only other settings help.
            BrokerUnavailable: no token is available now; a retry may succeed.
            DeadlineExceeded: no token came in time.
            Interrupted: the deadline's wakeup was set first.
        """

    def record_rejection(self, token: Token) -> None:
        """Notes that a broker rejected a token of :meth:`fetch`, so that a kept token is not used until its end."""


Random = Callable[[], float]
"""Returns a number from 0 to 1."""


@dataclass(frozen=True, slots=True)
class RefreshWindow:
    """``factor`` and ``jitter`` are parts of a token's lifetime; ``min_period`` and ``buffer`` are in seconds.

    The jitter spreads the requests of many clients that started together.
    """

    factor: float = 0.8
    jitter: float = 0.05
    min_period: float = 60.0
    buffer: float = 300.0

    def delay(self, lifetime: float, rng: Random = random.random) -> float:
        """Returns how many seconds after its arrival a token that is valid for ``lifetime`` seconds is renewed."""
        wanted = lifetime * min(self.factor + self.jitter * rng(), 1.0)
        if self.min_period + self.buffer > lifetime:
            return wanted
        return max(min(wanted, lifetime - self.buffer), self.min_period)


_FILE = "Put the file on the driver and on each executor, or correct 'kafka.sasl.oauthbearer.token.endpoint.url'."


@dataclass(frozen=True, slots=True)
class FileTokens:
    """Reads the file for every token, so that the next connection uses a renewed one.

    ``extensions`` are SASL extensions by name.
    """

    path: str
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return f"Check the token in the file '{self.path}' of 'kafka.sasl.oauthbearer.token.endpoint.url', and its end."

    def fetch(self, deadline: Deadline) -> Token:
        """Returns the token in the file.

        Raises:
            BrokerUnavailable: the file cannot be read, or is empty. Somebody may be replacing it.
        """
        name = f"The file '{self.path}' of 'kafka.sasl.oauthbearer.token.endpoint.url'"
        try:
            text = Path(self.path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise BrokerUnavailable(f"{name} cannot be read on {socket.gethostname()}: {reason}.", _FILE) from None
        if not text:
            raise BrokerUnavailable(f"{name} is empty on {socket.gethostname()}.", _FILE)
        return Token(text, dict(self.extensions))

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""


_MODULE = (
    "Install its module for the driver and for each executor. Files of --py-files do not reach the process that plans a"
    " query."
)
_FUNCTION = "Check the function; it runs on the driver and on each executor."


@dataclass(frozen=True, slots=True)
class FunctionTokens:
    """Calls the function for every token. ``path`` is its ``module:function``."""

    path: str

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return "Check what 'kafka.sasl.oauthbearer.token.provider' returns."

    def fetch(self, deadline: Deadline) -> Token:
        """Calls the function and returns the token.

        Raises:
            AuthenticationFailed: the function returned neither a text nor a pair of a text and a dict.
            BrokerUnavailable: the function failed. A retry may succeed, because the token service may be down.
            DeadlineExceeded: the function did not return in time.
            OptionError: the function cannot be imported here.
        """
        name = f"The function '{self.path}' of 'kafka.sasl.oauthbearer.token.provider'"
        try:
            function = load(self.path, "function")
        except ValueError as error:
            raise OptionError(
                f"{name} cannot be called on {socket.gethostname()}: it must be {error}.", _MODULE
            ) from error
        try:
            result = call_with_timeout(function, deadline, self.path)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{name} did not return in time.", _FUNCTION) from error
        except (Exception, SystemExit) as error:
            raise BrokerUnavailable(f"{name} failed: {error!r}.", _FUNCTION) from error
        text, extensions = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(text, str) or not text.strip() or not isinstance(extensions, dict):
            raise AuthenticationFailed(
                f"{name} returned a {type(result).__name__}.",
                "Return the token as text, or a pair of the token and a dict of SASL extensions.",
            )
        # A token from a file ends with a line break, which brokers reject.
        return Token(text.strip(), extensions)

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""


def without_secrets(url: str) -> str:
    """The URL without its query, in which some services expect a key, and without a user and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


@dataclass(frozen=True, slots=True, repr=False)
class ClientCredentials:
    """The settings of one client at a token endpoint. Times are in seconds.

    ``extensions`` are SASL extensions by name. ``tls`` is for an https endpoint. ``encode_header`` percent-encodes id
    and secret in the header, as RFC 6749 demands and many services do not expect. The claims are for the log.
    """

    endpoint: str
    client_id: str
    client_secret: Secret
    tls: Tls | None = None
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    encode_header: bool = False
    connect_timeout: float = 10.0
    read_timeout: float = 10.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 10.0
    window: RefreshWindow = field(default_factory=RefreshWindow)
    subject_claim: str = "sub"
    scope_claim: str = "scope"

    def __repr__(self) -> str:
        return f"ClientCredentials({without_secrets(self.endpoint)!r}, client_id={self.client_id!r})"

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return (
            "Compare the token's issuer, audience and scope with the brokers' sasl.oauthbearer.expected.issuer,"
            " sasl.oauthbearer.expected.audience and permissions, and check 'kafka.sasl.oauthbearer.scope' and the"
            " extensions in 'kafka.sasl.jaas.config'."
        )

    def fetch(self, deadline: Deadline) -> Token:
        """Returns the token that this process keeps; waits for the token endpoint only if none is valid.

        Raises:
            AuthenticationFailed: the endpoint rejected the client, or never gave a usable token.
            BrokerUnavailable: no token is available now; a retry may succeed.
            DeadlineExceeded: the endpoint did not answer in time.
            Interrupted: the deadline's wakeup was set first.
        """
        return Token(token_cache_of(self).fetch(deadline), dict(self.extensions))

    def record_rejection(self, token: Token) -> None:
        """Renews the kept token soon, because a broker rejected it."""
        token_cache_of(self).record_rejection(token.text)


_kept: dict[ClientCredentials, TokenCache] = {}
"""The tokens of this process."""

# The threads that renew tokens stay in the parent, perhaps with a lock.
os.register_at_fork(after_in_child=_kept.clear)


def token_cache_of(settings: ClientCredentials) -> TokenCache:
    """Returns the token of these settings in this process."""
    # They import ssl and urllib, which most processes never need.
    from spark_group_source.auth.oauth.endpoint import TokenCache, endpoint_name, request_token

    kept = _kept.get(settings)
    if kept is None:
        new = TokenCache(
            lambda worked: request_token(settings, worked_before=worked),
            endpoint_name(settings),
            settings.window,
            (settings.retry_backoff, settings.retry_backoff_max),
        )
        # Of two threads that come here at once, the second takes the first one's.
        kept = _kept.setdefault(settings, new)
        if kept is new and settings.tls is None and not is_local(settings.endpoint):
            log.warning("%s is not https: the client secret is sent unencrypted", endpoint_name(settings))
    return kept


def is_local(url: str) -> bool:
    """Whether the host of a URL is this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


INSTALL = "pip install 'spark_group_source[msk]'"

_TIMEOUT = "Check on this machine how long this takes: aws sts get-caller-identity"


@dataclass(frozen=True, slots=True)
class MskIamTokens:
    """Signs a token for each connection to a cluster in ``region``.

    Signing takes less than a millisecond. Tokens are not kept, and none outlives the credentials that signed it.
    Without ``profile`` and ``role_arn`` AWS's default chain finds the credentials. A role is assumed in ``sts_region``;
    by default in the region of AWS's configuration, else in ``region``. ``log_identity`` logs the identity once.
    """

    region: str
    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str = "aws-msk-iam-auth"
    role_external_id: str | None = None
    sts_region: str | None = None
    log_identity: bool = False

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return (
            "Check that the IAM identity may use kafka-cluster:Connect on this cluster, that the cluster is in"
            f" {self.region}, and the clock of this machine. To see the identity run: aws sts get-caller-identity"
        )

    def fetch(self, deadline: Deadline) -> Token:
        """Signs a token.

        Raises:
            AuthenticationFailed: AWS's signer is not installed, no credentials are found, or AWS rejects them.
            BrokerUnavailable: AWS gives no credentials now.
            DeadlineExceeded: AWS gave no credentials in time.
        """
        try:
            from spark_group_source.auth.aws_signer import signed_token
        except ImportError as error:
            raise AuthenticationFailed(
                f"AWS's signer is not installed in this Python: {error}.",
                f"On the driver and on each executor run: {INSTALL}",
            ) from None
        try:
            return Token(call_with_timeout(lambda: signed_token(self), deadline, f"signed_token({self})"), {})
        except TimeoutError as error:
            raise DeadlineExceeded("AWS gave no credentials for Amazon MSK in time.", _TIMEOUT) from error

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""
