"""The sign-in that follows from the options of SASL."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from spark_group_source.auth import msk_iam_options
from spark_group_source.auth.jaas import PasswordLogin
from spark_group_source.auth.msk_iam_options import IamLogin
from spark_group_source.auth.msk_iam_tokens import MskIamTokens
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.client_tokens import ClientTokens
from spark_group_source.auth.oauth.endpoint_url import names_file
from spark_group_source.auth.oauth.login import OAuthLogin
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.auth.security_options import (
    CLIENT_ID,
    CLIENT_SECRET,
    JWT_RETRIEVER,
    TOKEN_ENDPOINT,
    TOKEN_FUNCTION,
    BootstrapServers,
    SecurityOptions,
)
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_options import check_tls
from spark_group_source.auth.tokens import FileTokens, FunctionTokens, TokenProvider
from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError


def sasl_sign_in(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> SaslSignIn:
    """Returns the sign-in that follows from checked options.

    Raises:
        OptionError: as :func:`security_settings`.
    """
    return SaslSignIn(_credentials(options, bootstrap_servers))


def _credentials(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> Sasl:
    chosen, login = options.mechanism, options.jaas
    assert chosen is not None, "the check of the sign-in requires a mechanism"
    if isinstance(login, PasswordLogin):
        return Sasl(chosen, login.username, login.password)
    if options.uses_msk_iam:
        settings: Mapping[str, str] = {}
        if isinstance(login, IamLogin):
            settings = login.settings
        tokens = MskIamTokens(msk_iam_options.msk_iam(bootstrap_servers, settings))
        return Sasl("OAUTHBEARER", token_provider=tokens)
    if chosen == "OAUTHBEARER":
        oauth = OAuthLogin()
        if isinstance(login, OAuthLogin):
            oauth = login
        return Sasl(chosen, token_provider=_token_provider(options, oauth))
    return Sasl(chosen, options.username, options.password, kerberos_service=options.kerberos_service)


def _token_provider(options: SecurityOptions, login: OAuthLogin) -> TokenProvider:
    if options.token_provider is not None:
        return FunctionTokens(options.token_provider)
    url = options.oauth.get("endpoint")
    if url is None:
        raise OptionError(
            f"Option '{TOKEN_ENDPOINT}' is missing.",
            "Set it to the token endpoint of your identity provider: 'kafka.sasl.mechanism' OAUTHBEARER needs it. Or"
            f" set '{TOKEN_FUNCTION}' to a function that returns tokens.",
        )
    _check_retriever(options.jwt_retriever, url)
    if names_file(url):
        return _file_tokens(url, login)
    return ClientTokens(_client(url, options.oauth, login))


def _check_retriever(retriever: str, url: str) -> None:
    kind, fitting = "no file", "ClientCredentialsJwtRetriever"
    if names_file(url):
        kind, fitting = "a file", "FileJwtRetriever"
    if retriever not in ("DefaultJwtRetriever", fitting):
        raise OptionError(
            f"Option '{JWT_RETRIEVER}' is {retriever}, and '{TOKEN_ENDPOINT}' is {kind}.",
            f"Remove '{JWT_RETRIEVER}': the URL decides.",
        )


def _file_tokens(url: str, login: OAuthLogin) -> FileTokens:
    if login != OAuthLogin(extensions=login.extensions):
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings without effect, because '{TOKEN_ENDPOINT}' is a file.",
            "Remove all settings of the JAAS config, except extensions.",
        )
    tokens = FileTokens(urllib.parse.unquote(urllib.parse.urlsplit(url).path), login.extensions)
    try:
        tokens.fetch(Deadline.after(0.0))
    except BrokerUnavailable as error:
        raise OptionError(error.happened, error.action) from None
    return tokens


def _client(url: str, oauth: dict[str, Any], login: OAuthLogin) -> ClientCredentials:
    """An option takes precedence over the JAAS config, as in Java."""
    of_login = {
        "client_id": login.client_id,
        "client_secret": login.client_secret,
        "scope": login.scope,
        "extensions": login.extensions,
    }
    settings = of_login | oauth
    if not settings["client_id"]:
        raise _missing(CLIENT_ID, "clientId")
    if settings["client_secret"] is None:
        raise _missing(CLIENT_SECRET, "clientSecret")
    return ClientCredentials(**settings, tls=_endpoint_tls(url, login))


def _endpoint_tls(url: str, login: OAuthLogin) -> Tls | None:
    if url.startswith("https:"):
        check_tls(login.tls)
        return login.tls
    if login.tls != OAuthLogin().tls:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings ssl.*, and '{TOKEN_ENDPOINT}' is not https.",
            "Write https, or remove the settings: they have no effect without TLS.",
        )
    return None


def _missing(name: str, setting: str) -> OptionError:
    action = f"Set it, or {setting} in 'kafka.sasl.jaas.config': '{TOKEN_ENDPOINT}' needs it."
    return OptionError(f"Option '{name}' is missing.", action)
