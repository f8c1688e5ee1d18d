"""Tokens of an OAuth 2 service by the grant ``client_credentials`` (KIP-768, KIP-1139)."""

from __future__ import annotations

import ipaddress
import logging
import os
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_group_source.clock import Deadline
from spark_group_source.text import Secret
from spark_group_source.wire.tokens.provider import Token
from spark_group_source.wire.tokens.refresh_window import RefreshWindow

if TYPE_CHECKING:
    from spark_group_source.wire.settings import Tls
    from spark_group_source.wire.tokens.kept_token import KeptToken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedToken:
    """A token for other processes. Both times are in seconds since 1970: see ``KeptToken``."""

    text: Secret
    usable_until: float
    refresh_at: float


@dataclass(frozen=True, slots=True)
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
            AuthenticationFailed: the endpoint refused the client, or never gave a usable token.
            BrokerUnavailable: no token is available now; a retry may succeed.
            DeadlineExceeded: the endpoint did not answer in time.
            Interrupted: the deadline's wakeup was set first.
        """
        return Token(kept_token_of(self).fetch(deadline), dict(self.extensions))

    def record_rejection(self, token: Token) -> None:
        """Renews the kept token soon, because a broker rejected it."""
        kept_token_of(self).record_rejection(token.text)


_kept: dict[ClientCredentials, KeptToken] = {}
"""The tokens of this process."""

# The threads that renew tokens stay in the parent, perhaps with a lock.
os.register_at_fork(after_in_child=_kept.clear)


def kept_token_of(settings: ClientCredentials) -> KeptToken:
    """Returns the token of these settings in this process."""
    # They import ssl and urllib, which most processes never need.
    from spark_group_source.wire.tokens.kept_token import KeptToken
    from spark_group_source.wire.tokens.token_request import endpoint_name, request_token

    kept = _kept.get(settings)
    if kept is None:
        new = KeptToken(
            lambda worked: request_token(settings, worked_before=worked),
            endpoint_name(settings),
            settings.window,
            (settings.retry_backoff, settings.retry_backoff_max),
        )
        # Of two threads that come here at once, the second takes the first one's.
        kept = _kept.setdefault(settings, new)
        if kept is new and settings.tls is None and not _is_local(settings.endpoint):
            log.warning("%s is not https: the client secret is sent unencrypted", endpoint_name(settings))
    return kept


def _is_local(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
