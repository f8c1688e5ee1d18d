"""The driver's token for its tasks: a new Python worker needs no request, and no token service that it can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_group_source.wire.tokens.client_credentials import ClientCredentials, SharedToken, kept_token_of

if TYPE_CHECKING:
    from spark_group_source.wire.settings import WireOptions


def share_token(options: WireOptions) -> SharedToken | None:
    """Returns the token that this process keeps for these settings, or ``None`` without a valid one."""
    provider = None if options.sasl is None else options.sasl.token_provider
    return kept_token_of(provider).share() if isinstance(provider, ClientCredentials) else None


def adopt_token(options: WireOptions, token: SharedToken | None) -> None:
    """Keeps the token of another process for these settings, unless this process has one that is valid for longer."""
    provider = None if options.sasl is None else options.sasl.token_provider
    if isinstance(provider, ClientCredentials) and token is not None:
        kept_token_of(provider).adopt(token)
