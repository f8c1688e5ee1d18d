"""OAuth options: their rows of the table, their checks, and the provider of tokens."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError
from spark_group_source.options.jaas_oauth import OAuthLogin
from spark_group_source.options.oauth_parsers import (
    buffer,
    endpoint_url,
    jwt_retriever,
    jwt_validator,
    min_period,
    window_factor,
    window_jitter,
)
from spark_group_source.options.option import Option
from spark_group_source.options.security_parsers import non_blank_secret
from spark_group_source.options.tls import check_tls
from spark_group_source.options.value_parsers import boolean, importable_function, milliseconds, non_blank
from spark_group_source.text import Secret
from spark_group_source.wire.tokens.client_credentials import ClientCredentials
from spark_group_source.wire.tokens.provider import TokenProvider
from spark_group_source.wire.tokens.refresh_window import RefreshWindow
from spark_group_source.wire.tokens.token_file import FileTokens
from spark_group_source.wire.tokens.user_function import FunctionTokens

FUNCTION = "kafka.sasl.oauthbearer.token.provider"
ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID = "kafka.sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET = "kafka.sasl.oauthbearer.client.credentials.client.secret"
_SCOPE = "kafka.sasl.oauthbearer.scope"
_OF_A_CLIENT = (_CLIENT_ID, _CLIENT_SECRET, _SCOPE)
_RETRIEVER = "kafka.sasl.oauthbearer.jwt.retriever.class"
_FILE_RETRIEVER, _CLIENT_RETRIEVER = "FileJwtRetriever", "ClientCredentialsJwtRetriever"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthOptions:
    """The fields of :data:`OAUTH_OPTIONS`. Times are in seconds."""

    sasl_token_provider: str | None = None
    sasl_token_endpoint: str | None = None
    sasl_client_id: str | None = None
    sasl_client_secret: Secret | None = None
    sasl_scope: str | None = None
    sasl_header_urlencode: bool = False
    sasl_jwt_retriever: str = "DefaultJwtRetriever"
    sasl_jwt_validator: str = "DefaultJwtValidator"
    sasl_connect_timeout: float = 10.0
    sasl_read_timeout: float = 10.0
    sasl_retry_backoff: float = 0.1
    sasl_retry_backoff_max: float = 10.0
    sasl_refresh_factor: float = 0.8
    sasl_refresh_jitter: float = 0.05
    sasl_refresh_min_period: float = 60.0
    sasl_refresh_buffer: float = 300.0
    sasl_subject_claim: str = "sub"
    sasl_scope_claim: str = "scope"


OAUTH_OPTIONS: tuple[Option, ...] = (
    # Secret, because users may write a token, or a URL with a password.
    Option(FUNCTION, "sasl_token_provider", importable_function, secret=True),
    Option(ENDPOINT, "sasl_token_endpoint", endpoint_url, secret=True),
    Option(_CLIENT_ID, "sasl_client_id", non_blank),
    Option(_CLIENT_SECRET, "sasl_client_secret", non_blank_secret, secret=True),
    Option(_SCOPE, "sasl_scope", non_blank),
    Option("kafka.sasl.oauthbearer.header.urlencode", "sasl_header_urlencode", boolean),
    Option(_RETRIEVER, "sasl_jwt_retriever", jwt_retriever),
    Option("kafka.sasl.oauthbearer.jwt.validator.class", "sasl_jwt_validator", jwt_validator),
    Option("kafka.sasl.login.connect.timeout.ms", "sasl_connect_timeout", milliseconds),
    Option("kafka.sasl.login.read.timeout.ms", "sasl_read_timeout", milliseconds),
    Option("kafka.sasl.login.retry.backoff.ms", "sasl_retry_backoff", milliseconds),
    Option("kafka.sasl.login.retry.backoff.max.ms", "sasl_retry_backoff_max", milliseconds),
    Option("kafka.sasl.login.refresh.window.factor", "sasl_refresh_factor", window_factor),
    Option("kafka.sasl.login.refresh.window.jitter", "sasl_refresh_jitter", window_jitter),
    Option("kafka.sasl.login.refresh.min.period.seconds", "sasl_refresh_min_period", min_period),
    Option("kafka.sasl.login.refresh.buffer.seconds", "sasl_refresh_buffer", buffer),
    Option("kafka.sasl.oauthbearer.sub.claim.name", "sasl_subject_claim", non_blank),
    Option("kafka.sasl.oauthbearer.scope.claim.name", "sasl_scope_claim", non_blank),
)


def options_of_oauth(options: OAuthOptions) -> tuple[list[str], str]:
    """Returns the OAuth options that are allowed, and the option that excludes the others, if any does."""
    if options.sasl_token_provider is not None:
        return [FUNCTION], f"'{FUNCTION}'"
    allowed = [row.name for row in OAUTH_OPTIONS if row.name != FUNCTION]
    if _is_file(options.sasl_token_endpoint):
        return [name for name in allowed if name not in _OF_A_CLIENT], f"a file in '{ENDPOINT}'"
    return allowed, ""


def token_provider(options: OAuthOptions, login: OAuthLogin) -> TokenProvider:
    """The provider of tokens. An option takes precedence over the login line, as in Java.

    Raises:
        OptionError: the options name no complete source of tokens; the message names the option to change.
    """
    if options.sasl_token_provider is not None:
        return FunctionTokens(options.sasl_token_provider)
    url = options.sasl_token_endpoint
    if url is None:
        raise OptionError(
            f"Option '{ENDPOINT}' is missing.",
            "Set it to the token endpoint of your identity provider: 'kafka.sasl.mechanism' OAUTHBEARER needs it. Or"
            f" set '{FUNCTION}' to a function that returns tokens.",
        )
    is_file = _is_file(url)
    kind = "a file" if is_file else "no file"
    if options.sasl_jwt_retriever not in ("DefaultJwtRetriever", _FILE_RETRIEVER if is_file else _CLIENT_RETRIEVER):
        raise OptionError(
            f"Option '{_RETRIEVER}' is {options.sasl_jwt_retriever}, and '{ENDPOINT}' is {kind}.",
            f"Remove '{_RETRIEVER}': the URL decides.",
        )
    return _file_tokens(url, login) if is_file else _client(url, options, login)


def _is_file(url: str | None) -> bool:
    return url is not None and url.startswith("file:")


def _file_tokens(url: str, login: OAuthLogin) -> FileTokens:
    if login != OAuthLogin(extensions=login.extensions):
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings without effect, because '{ENDPOINT}' is a file.",
            "Remove all settings of the login line, except extensions.",
        )
    tokens = FileTokens(urllib.parse.unquote(urllib.parse.urlsplit(url).path), login.extensions)
    try:
        tokens.fetch(Deadline.after(0.0))
    except BrokerUnavailable as error:
        raise OptionError(error.happened, error.action) from None
    return tokens


def _client(url: str, options: OAuthOptions, login: OAuthLogin) -> ClientCredentials:
    client_id = options.sasl_client_id or login.client_id
    if not client_id:
        raise _missing(_CLIENT_ID, "clientId")
    client_secret = options.sasl_client_secret or login.client_secret
    if client_secret is None:
        raise _missing(_CLIENT_SECRET, "clientSecret")
    uses_tls = url.startswith("https:")
    if uses_tls:
        check_tls(login.tls)
    elif login.tls != OAuthLogin().tls:
        raise OptionError(
            f"Option 'kafka.sasl.jaas.config' has settings ssl.*, and '{ENDPOINT}' is not https.",
            "Write https, or remove the settings: they have no effect without TLS.",
        )
    return ClientCredentials(
        endpoint=url,
        client_id=client_id,
        client_secret=client_secret,
        tls=login.tls if uses_tls else None,
        scope=options.sasl_scope or login.scope,
        extensions=login.extensions,
        encode_header=options.sasl_header_urlencode,
        connect_timeout=options.sasl_connect_timeout,
        read_timeout=options.sasl_read_timeout,
        retry_backoff=min(options.sasl_retry_backoff, options.sasl_retry_backoff_max),
        retry_backoff_max=options.sasl_retry_backoff_max,
        window=RefreshWindow(
            options.sasl_refresh_factor,
            options.sasl_refresh_jitter,
            options.sasl_refresh_min_period,
            options.sasl_refresh_buffer,
        ),
        subject_claim=options.sasl_subject_claim,
        scope_claim=options.sasl_scope_claim,
    )


def _missing(name: str, setting: str) -> OptionError:
    action = f"Set it, or {setting} in 'kafka.sasl.jaas.config': '{ENDPOINT}' needs it."
    return OptionError(f"Option '{name}' is missing.", action)
