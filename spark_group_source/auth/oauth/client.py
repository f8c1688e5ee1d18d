"""An OAuth client at a token endpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_group_source.auth.oauth.endpoint_url import without_secrets
from spark_group_source.auth.oauth.token import RefreshWindow
from spark_group_source.auth.tls import Tls
from spark_group_source.text import Secret


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


def endpoint_name(settings: ClientCredentials) -> str:
    """Names the endpoint in errors and log lines, without the query of its URL, in which some services expect a key."""
    return f"token endpoint {without_secrets(settings.endpoint)}"
