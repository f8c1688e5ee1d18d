"""The checks of TLS and SASL options, and the settings of connections that follow from them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.auth import msk_iam
from spark_group_source.auth.jaas import OAuthLogin, PasswordLogin
from spark_group_source.auth.msk_iam import IamLogin
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_options import BY_PASSWORD, MECHANISMS, PROTOCOLS
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_options import check_tls
from spark_group_source.auth.tokens import ClientCredentials, FileTokens, FunctionTokens, TokenProvider
from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError
from spark_group_source.text import Secret

_MECHANISM = "kafka.sasl.mechanism"
_USERNAME, _PASSWORD = "kafka.sasl.username", "kafka.sasl.password"
_LOGIN_LINE = "kafka.sasl.jaas.config"
_LOGIN_HANDLER = "kafka.sasl.login.callback.handler.class"
_CLIENT_HANDLER = "kafka.sasl.client.callback.handler.class"
_KERBEROS_SERVICE = "kafka.sasl.kerberos.service.name"
_FUNCTION = "kafka.sasl.oauthbearer.token.provider"
_ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID = "kafka.sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET = "kafka.sasl.oauthbearer.client.credentials.client.secret"
_SCOPE = "kafka.sasl.oauthbearer.scope"
_OF_A_CLIENT = (_CLIENT_ID, _CLIENT_SECRET, _SCOPE)
_RETRIEVER = "kafka.sasl.oauthbearer.jwt.retriever.class"
_FILE_RETRIEVER, _CLIENT_RETRIEVER = "FileJwtRetriever", "ClientCredentialsJwtRetriever"
_OF_OAUTH = ("kafka.sasl.oauthbearer.", "kafka.sasl.login.")


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The options that :func:`security_settings` turns into the settings of connections.

    ``oauth`` are the values of ``ClientCredentials`` that the user has set. ``given`` are the names of the options with
    another value than the default, in the order of the table.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    jaas: PasswordLogin | OAuthLogin | IamLogin | None = None
    username: str | None = None
    password: Secret | None = None
    login_handler: str | None = None
    client_handler: str | None = None
    kerberos_service: str | None = None
    truststore_type: str = "PEM"
    keystore_type: str = "PEM"
    token_provider: str | None = None
    jwt_retriever: str = "DefaultJwtRetriever"
    jwt_validator: str = "DefaultJwtValidator"
    tls: Tls = field(default_factory=Tls)
    oauth: dict[str, Any] = field(default_factory=dict)
    given: Sequence[str] = ()


BootstrapServers = tuple[tuple[str, int], ...]


def security_settings(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> tuple[Tls | None, Sasl | None]:
    """Returns the settings of TLS and SASL, ``None`` without them.

    Raises:
        OptionError: the options do not fit together, are not complete or name unusable files, or the region of an
            Amazon MSK cluster is unknown; the message names the option to change.
    """
    _check_layer(options, "SSL", [name for name in options.given if name.startswith("kafka.ssl.")])
    _check_layer(options, "SASL", [name for name in options.given if name.startswith("kafka.sasl.")])
    sasl = tls = None
    if options.protocol.startswith("SASL"):
        _check_sign_in(options)
        sasl = _sasl(options, bootstrap_servers)
    if options.protocol.endswith("SSL"):
        tls = options.tls
        check_tls(tls)
    return tls, sasl


def _sasl(options: SecurityOptions, bootstrap_servers: BootstrapServers) -> Sasl:
    chosen, login = options.mechanism or "", options.jaas
    if isinstance(login, PasswordLogin):
        return Sasl(chosen, login.username, login.password)
    if _uses_msk_iam(options):
        iam = login if isinstance(login, IamLogin) else None
        return Sasl("OAUTHBEARER", token_provider=msk_iam.msk_iam_tokens(bootstrap_servers, iam))
    if chosen == "OAUTHBEARER":
        oauth = login if isinstance(login, OAuthLogin) else OAuthLogin()
        return Sasl(chosen, token_provider=_token_provider(options, oauth))
    return Sasl(chosen, options.username, options.password, kerberos_service=options.kerberos_service)


def _uses_msk_iam(options: SecurityOptions) -> bool:
    return options.mechanism == msk_iam.MECHANISM or options.login_handler == msk_iam.LOGIN_HANDLER


def _check_layer(options: SecurityOptions, layer: str, given: list[str]) -> None:
    if given and layer not in options.protocol:
        protocols = [protocol for protocol in PROTOCOLS if layer in protocol]
        raise OptionError(
            f"Option '{given[0]}' has no effect with 'kafka.security.protocol' {options.protocol}.",
            f"Set 'kafka.security.protocol' to {' or '.join(protocols)}, or remove '{given[0]}'.",
        )


def _check_sign_in(options: SecurityOptions) -> None:
    """Checks that the mechanism has all its options, and none of another mechanism."""
    if options.mechanism is None:
        raise OptionError(f"Option '{_MECHANISM}' is missing.", f"Set it to one of {', '.join(MECHANISMS)}.")
    for name in (_USERNAME, _PASSWORD):
        if name in options.given and _LOGIN_LINE in options.given:
            raise OptionError(f"Options '{_LOGIN_LINE}' and '{name}' are set.", "Set only one of them.")
    _check_login_module(options, options.mechanism)
    needed, allowed, reason = _options_of(options, options.mechanism)
    for name in needed:
        if name not in options.given:
            raise OptionError(f"Option '{name}' is missing.", f"Set it: {reason} needs it.")
    for name in options.given:
        if name.startswith("kafka.sasl.") and name not in (_MECHANISM, *needed, *allowed):
            raise OptionError(f"Option '{name}' has no effect with {reason}.", "Remove it.")


def _options_of(options: SecurityOptions, chosen: str) -> tuple[list[str], list[str], str]:
    """Returns the options that a sign-in needs, those that it allows, and what decides about both."""
    reason = f"'{_MECHANISM}' {chosen}"
    if chosen in BY_PASSWORD:
        return [_LOGIN_LINE] if options.jaas else [_USERNAME, _PASSWORD], [], reason
    if chosen == "GSSAPI":
        return [_KERBEROS_SERVICE], [], reason
    if chosen == msk_iam.MECHANISM:
        return [], [_LOGIN_LINE, _CLIENT_HANDLER], reason
    if _uses_msk_iam(options):
        return [], [_LOGIN_LINE, _CLIENT_HANDLER, _LOGIN_HANDLER], reason
    allowed, oauth_reason = _oauth_options(options)
    without_login = options.token_provider is not None
    return [], allowed if without_login else [*allowed, _LOGIN_LINE, _LOGIN_HANDLER], oauth_reason or reason


def _check_login_module(options: SecurityOptions, chosen: str) -> None:
    login = options.jaas
    if login is None:
        return
    module = "PlainLoginModule or ScramLoginModule"
    mechanisms: tuple[str, ...] = BY_PASSWORD
    if isinstance(login, OAuthLogin):
        module, mechanisms = "OAuthBearerLoginModule", ("OAUTHBEARER",)
    elif isinstance(login, IamLogin):
        module = login.module
        mechanisms = (msk_iam.MECHANISM,) if module == "IAMLoginModule" else ("OAUTHBEARER",)
    if chosen not in mechanisms:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has the module {module}, and 'kafka.sasl.mechanism' is {chosen}.",
            f"Set 'kafka.sasl.mechanism' to {' or '.join(mechanisms)}, or correct the JAAS config.",
        )
    if chosen == "OAUTHBEARER" and isinstance(login, IamLogin) != _uses_msk_iam(options) and login != OAuthLogin():
        raise OptionError(
            "Options 'kafka.sasl.jaas.config' and 'kafka.sasl.login.callback.handler.class' do not fit together.",
            f"Settings of AWS in the JAAS config need the {msk_iam.LOGIN_HANDLER}, and it allows no others.",
        )


def _oauth_options(options: SecurityOptions) -> tuple[list[str], str]:
    """Returns the given OAuth options that are allowed, and the option that excludes the others, if any does."""
    if options.token_provider is not None:
        return [_FUNCTION], f"'{_FUNCTION}'"
    allowed = [name for name in options.given if name.startswith(_OF_OAUTH) and name not in (_FUNCTION, _LOGIN_HANDLER)]
    if _is_file(options.oauth.get("endpoint")):
        return [name for name in allowed if name not in _OF_A_CLIENT], f"a file in '{_ENDPOINT}'"
    return allowed, ""


def _token_provider(options: SecurityOptions, login: OAuthLogin) -> TokenProvider:
    """The provider of tokens. An option takes precedence over the JAAS config, as in Java."""
    if options.token_provider is not None:
        return FunctionTokens(options.token_provider)
    url = options.oauth.get("endpoint")
    if url is None:
        raise OptionError(
            f"Option '{_ENDPOINT}' is missing.",
            "Set it to the token endpoint of your identity provider: 'kafka.sasl.mechanism' OAUTHBEARER needs it. Or"
            f" set '{_FUNCTION}' to a function that returns tokens.",
        )
    is_file = _is_file(url)
    kind = "a file" if is_file else "no file"
    if options.jwt_retriever not in ("DefaultJwtRetriever", _FILE_RETRIEVER if is_file else _CLIENT_RETRIEVER):
        raise OptionError(
            f"Option '{_RETRIEVER}' is {options.jwt_retriever}, and '{_ENDPOINT}' is {kind}.",
            f"Remove '{_RETRIEVER}': the URL decides.",
        )
    return _file_tokens(url, login) if is_file else _client(url, options.oauth, login)


def _is_file(url: str | None) -> bool:
    return url is not None and url.startswith("file:")


def _file_tokens(url: str, login: OAuthLogin) -> FileTokens:
    if login != OAuthLogin(extensions=login.extensions):
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings without effect, because '{_ENDPOINT}' is a file.",
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
        raise _missing(_CLIENT_ID, "clientId")
    client_secret = oauth.get("client_secret") or login.client_secret
    if client_secret is None:
        raise _missing(_CLIENT_SECRET, "clientSecret")
    uses_tls = url.startswith("https:")
    if uses_tls:
        check_tls(login.tls)
    elif login.tls != OAuthLogin().tls:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings ssl.*, and '{_ENDPOINT}' is not https.",
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
    action = f"Set it, or {setting} in 'kafka.sasl.jaas.config': '{_ENDPOINT}' needs it."
    return OptionError(f"Option '{name}' is missing.", action)
