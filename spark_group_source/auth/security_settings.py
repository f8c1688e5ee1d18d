"""The settings of TLS and SASL that follow from the options, after the checks between them."""

from __future__ import annotations

import urllib.parse
from typing import Any

from spark_group_source.auth import msk_iam_options
from spark_group_source.auth.jaas import PasswordLogin
from spark_group_source.auth.msk_iam_options import IamLogin
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.endpoint_url import names_file
from spark_group_source.auth.oauth.login import OAuthLogin
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.security_checks import check_layer, check_sign_in
from spark_group_source.auth.security_options import (
    CLIENT_ID,
    CLIENT_SECRET,
    JWT_RETRIEVER,
    TOKEN_ENDPOINT,
    TOKEN_FUNCTION,
    SecurityOptions,
)
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_options import check_tls
from spark_group_source.auth.tokens import FileTokens, FunctionTokens, TokenProvider
from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError

_FILE_RETRIEVER, _CLIENT_RETRIEVER = "FileJwtRetriever", "ClientCredentialsJwtRetriever"

BootstrapServers = tuple[tuple[str, int], ...]


def security_settings(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> tuple[Tls | None, Sasl | None]:
    """Returns the settings of TLS and SASL, ``None`` without them.

    Raises:
        OptionError: the options do not fit together, are not complete or name unusable files, or the region of an
            Amazon MSK cluster is unknown; the message names the option to change.
    """
    check_layer(options, "SSL", [name for name in options.given if name.startswith("kafka.ssl.")])
    check_layer(options, "SASL", [name for name in options.given if name.startswith("kafka.sasl.")])
    sasl = tls = None
    if options.protocol.startswith("SASL"):
        check_sign_in(options)
        sasl = _sasl(options, bootstrap_servers)
    if options.protocol.endswith("SSL"):
        tls = options.tls
        check_tls(tls)
    return tls, sasl


def _sasl(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> Sasl:
    chosen, login = options.mechanism or "", options.jaas
    if isinstance(login, PasswordLogin):
        return Sasl(chosen, login.username, login.password)
    if options.uses_msk_iam:
        iam = login if isinstance(login, IamLogin) else None
        return Sasl("OAUTHBEARER", token_provider=msk_iam_options.msk_iam_tokens(bootstrap_servers, iam))
    if chosen == "OAUTHBEARER":
        oauth = login if isinstance(login, OAuthLogin) else OAuthLogin()
        return Sasl(chosen, token_provider=_token_provider(options, oauth))
    return Sasl(chosen, options.username, options.password, kerberos_service=options.kerberos_service)


def _token_provider(options: SecurityOptions, login: OAuthLogin) -> TokenProvider:
    """The provider of tokens. An option takes precedence over the JAAS config, as in Java."""
    if options.token_provider is not None:
        return FunctionTokens(options.token_provider)
    url = options.oauth.get("endpoint")
    if url is None:
        raise OptionError(
            f"Option '{TOKEN_ENDPOINT}' is missing.",
            "Set it to the token endpoint of your identity provider: 'kafka.sasl.mechanism' OAUTHBEARER needs it. Or"
            f" set '{TOKEN_FUNCTION}' to a function that returns tokens.",
        )
    is_file = names_file(url)
    kind = "a file" if is_file else "no file"
    if options.jwt_retriever not in ("DefaultJwtRetriever", _FILE_RETRIEVER if is_file else _CLIENT_RETRIEVER):
        raise OptionError(
            f"Option '{JWT_RETRIEVER}' is {options.jwt_retriever}, and '{TOKEN_ENDPOINT}' is {kind}.",
            f"Remove '{JWT_RETRIEVER}': the URL decides.",
        )
    return _file_tokens(url, login) if is_file else _client(url, options.oauth, login)


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
    client_id = oauth.get("client_id") or login.client_id
    if not client_id:
        raise _missing(CLIENT_ID, "clientId")
    client_secret = oauth.get("client_secret") or login.client_secret
    if client_secret is None:
        raise _missing(CLIENT_SECRET, "clientSecret")
    uses_tls = url.startswith("https:")
    if uses_tls:
        check_tls(login.tls)
    elif login.tls != OAuthLogin().tls:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings ssl.*, and '{TOKEN_ENDPOINT}' is not https.",
            "Write https, or remove the settings: they have no effect without TLS.",
        )
    return ClientCredentials(
        **oauth
        | {
            "client_id": client_id,
            "client_secret": client_secret,
            "tls": login.tls if uses_tls else None,
            "scope": oauth.get("scope") or login.scope,
            "extensions": login.extensions,
        }
    )


def _missing(name: str, setting: str) -> OptionError:
    action = f"Set it, or {setting} in 'kafka.sasl.jaas.config': '{TOKEN_ENDPOINT}' needs it."
    return OptionError(f"Option '{name}' is missing.", action)
