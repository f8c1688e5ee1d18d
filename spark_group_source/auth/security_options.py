"""The options of TLS and SASL, as parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.auth import msk_iam_options
from spark_group_source.auth.jaas import PasswordLogin
from spark_group_source.auth.msk_iam_options import IamLogin
from spark_group_source.auth.oauth.login import OAuthLogin
from spark_group_source.auth.tls import Tls
from spark_group_source.text import Secret

MECHANISM = "kafka.sasl.mechanism"
USERNAME, PASSWORD = "kafka.sasl.username", "kafka.sasl.password"
JAAS_CONFIG = "kafka.sasl.jaas.config"
LOGIN_HANDLER = "kafka.sasl.login.callback.handler.class"
CLIENT_HANDLER = "kafka.sasl.client.callback.handler.class"
KERBEROS_SERVICE = "kafka.sasl.kerberos.service.name"
TOKEN_FUNCTION = "kafka.sasl.oauthbearer.token.provider"
TOKEN_ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "kafka.sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "kafka.sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "kafka.sasl.oauthbearer.scope"
JWT_RETRIEVER = "kafka.sasl.oauthbearer.jwt.retriever.class"

BootstrapServers = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The options from which the settings of connections follow, in :mod:`spark_group_source.auth.security_settings`.

    ``oauth`` are the values of ``ClientCredentials`` that the user has set. ``given`` are the names of the options
    whose value differs from the default, in the order of the table.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    jaas: PasswordLogin | OAuthLogin | IamLogin | None = None
    username: str | None = None
    password: Secret | None = None
    login_handler: str | None = None
    kerberos_service: str | None = None
    token_provider: str | None = None
    jwt_retriever: str = "DefaultJwtRetriever"
    tls: Tls = field(default_factory=Tls)
    oauth: dict[str, Any] = field(default_factory=dict)
    given: Sequence[str] = ()

    @property
    def uses_msk_iam(self) -> bool:
        """Whether the tokens are those of Amazon MSK with IAM."""
        return self.mechanism == msk_iam_options.MECHANISM or self.login_handler == msk_iam_options.LOGIN_HANDLER
