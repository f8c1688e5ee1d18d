"""Signing in at brokers with SASL."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.auth.oauth.client_tokens import ClientTokens, token_cache_of
from spark_group_source.auth.sasl import Sasl
from spark_group_source.clock import Deadline
from spark_group_source.wire.security import Call, ExportedToken


@dataclass(frozen=True, slots=True)
class SaslSignIn:
    """Authenticates this client with these credentials."""

    credentials: Sasl

    @property
    def username(self) -> str | None:
        """As :attr:`SignIn.username`."""
        return self.credentials.username

    def authenticate(self, host: str, broker: str, call: Call, deadline: Deadline) -> float | None:
        """As :meth:`SignIn.authenticate`."""
        from spark_group_source.auth import sasl_exchange  # imports kafka-python's clients, which takes 0.1 s

        return sasl_exchange.authenticate(self.credentials, host, broker, call, deadline)

    def export_token(self) -> ExportedToken | None:
        """As :meth:`SignIn.export_token`. Only an OAuth client keeps its token."""
        provider = self.credentials.token_provider
        if not isinstance(provider, ClientTokens):
            return None
        return token_cache_of(provider.client).export_token()

    def import_token(self, token: ExportedToken) -> None:
        """As :meth:`SignIn.import_token`."""
        provider = self.credentials.token_provider
        if isinstance(provider, ClientTokens):
            token_cache_of(provider.client).import_token(token)
