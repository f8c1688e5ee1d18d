"""The credentials of this client, by SASL mechanism."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.auth.oauth.client import ClientCredentials, token_cache_of
from spark_group_source.auth.tokens import TokenProvider
from spark_group_source.clock import Deadline
from spark_group_source.text import Secret
from spark_group_source.wire.security import Call, ExportedToken


@dataclass(frozen=True, slots=True)
class Sasl:
    """The client's credentials. A field that the mechanism does not use is ``None``.

    ``token_provider`` provides OAUTHBEARER tokens.
    """

    mechanism: str
    username: str | None = None
    password: Secret | None = None
    token_provider: TokenProvider | None = None
    kerberos_service: str | None = None

    def authenticate(self, host: str, broker: str, call: Call, deadline: Deadline) -> float | None:
        """As :meth:`SignIn.authenticate`."""
        from spark_group_source.auth import sasl_exchange  # imports kafka-python's clients, which takes 0.1 s

        return sasl_exchange.authenticate(self, host, broker, call, deadline)

    def export_token(self) -> ExportedToken | None:
        """As :meth:`SignIn.export_token`. Only an OAuth client keeps its token."""
        if not isinstance(self.token_provider, ClientCredentials):
            return None
        return token_cache_of(self.token_provider).export_token()

    def import_token(self, token: ExportedToken) -> None:
        """As :meth:`SignIn.import_token`."""
        if isinstance(self.token_provider, ClientCredentials):
            token_cache_of(self.token_provider).import_token(token)
