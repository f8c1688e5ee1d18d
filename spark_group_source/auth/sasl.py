"""The credentials of this client, by SASL mechanism."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.auth.tokens import TokenProvider
from spark_group_source.text import Secret


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
