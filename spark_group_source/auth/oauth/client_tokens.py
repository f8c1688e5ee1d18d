"""The tokens of OAuth clients, which this process keeps.

The driver's token travels with its tasks, so a new Python worker sends no request and need not reach the token service.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial

from spark_group_source.auth.oauth.cache import TokenCache
from spark_group_source.auth.oauth.client import ClientCredentials, endpoint_name
from spark_group_source.auth.oauth.endpoint_url import is_local
from spark_group_source.auth.oauth.token import IssuedToken
from spark_group_source.auth.tokens import Token
from spark_group_source.clock import Deadline

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientTokens:
    """Provides the tokens of one client at a token endpoint."""

    client: ClientCredentials

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
        return Token(token_cache_of(self.client).fetch(deadline), dict(self.client.extensions))

    def record_rejection(self, token: Token) -> None:
        """Renews the kept token soon, because a broker rejected it."""
        token_cache_of(self.client).record_rejection(token.text)


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
