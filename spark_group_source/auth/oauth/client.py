"""An OAuth client at a token endpoint, which provides the tokens that this process keeps.

The driver's token travels with its tasks, so a new Python worker sends no request and need not reach the token service.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import partial

from spark_group_source.auth.oauth.cache import TokenCache
from spark_group_source.auth.oauth.endpoint_url import is_local, without_secrets
from spark_group_source.auth.oauth.token import IssuedToken, RefreshWindow
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tokens import Token
from spark_group_source.clock import Deadline
from spark_group_source.text import Secret

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class ClientCredentials:
    """The settings of one client at a token endpoint. Times are in seconds.

    ``extensions`` are SASL extensions by name. ``tls`` is for an https endpoint. ``encode_header`` percent-encodes the
    id and the secret in the header, as RFC 6749 demands and many services do not expect. The log shows the claims.
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


def endpoint_name(settings: ClientCredentials) -> str:
    """Names the endpoint in errors and log lines, without the query of its URL, in which some services expect a key."""
    return f"token endpoint {without_secrets(settings.endpoint)}"


_caches: dict[ClientCredentials, TokenCache] = {}
"""The tokens of this process."""

# The threads that renew tokens stay in the parent, perhaps with a lock.
os.register_at_fork(after_in_child=_caches.clear)


def token_cache_of(settings: ClientCredentials) -> TokenCache:
    """Returns the token of these settings in this process."""
    cache = _caches.get(settings)
    if cache is not None:
        return cache
    new = TokenCache(
        partial(_request_token, settings),
        endpoint_name(settings),
        settings.window,
        (settings.retry_backoff, settings.retry_backoff_max),
    )
    # If two threads come here at once, the second uses the cache of the first.
    cache = _caches.setdefault(settings, new)
    if cache is new:
        _warn_if_unencrypted(settings)
    return cache


def _request_token(settings: ClientCredentials, worked_before: bool) -> IssuedToken:
    # Imports ssl and urllib, which a process with the driver's token does not need.
    from spark_group_source.auth.oauth.endpoint import request_token

    return request_token(settings, worked_before=worked_before)


def _warn_if_unencrypted(settings: ClientCredentials) -> None:
    if settings.tls is not None:
        return
    if not is_local(settings.endpoint):
        log.warning("%s is not https: the client secret is sent unencrypted", endpoint_name(settings))
