"""OAuth options: their rows of the table, their checks, and the provider of tokens."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from spark_group_source.errors import OptionError
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
from spark_group_source.options.security_parsers import secret
from spark_group_source.options.value_parsers import boolean, importable_function, milliseconds, non_blank
from spark_group_source.secret import Secret
from spark_group_source.wire.tokens.client_credentials import ClientCredentials
from spark_group_source.wire.tokens.provider import TokenProvider
from spark_group_source.wire.tokens.refresh_window import RefreshWindow
from spark_group_source.wire.tokens.token_file import FileTokens
from spark_group_source.wire.tokens.user_function import FunctionTokens

FUNCTION = "kafka.sasl.oauthbearer.token.provider"
ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID = "kafka.sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET = "kafka.sasl.oauthbearer.client.credentials.client.secret"


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
    Option(FUNCTION, "sasl_token_provider", importable_function),
    Option(ENDPOINT, "sasl_token_endpoint", endpoint_url),
    Option(_CLIENT_ID, "sasl_client_id", non_blank),
    Option(_CLIENT_SECRET, "sasl_client_secret", secret, secret=True),
    Option("kafka.sasl.oauthbearer.scope", "sasl_scope", non_blank),
    Option("kafka.sasl.oauthbearer.header.urlencode", "sasl_header_urlencode", boolean),
    Option("kafka.sasl.oauthbearer.jwt.retriever.class", "sasl_jwt_retriever", jwt_retriever),
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


def token_provider(options: OAuthOptions, login: OAuthLogin) -> TokenProvider | None:
    """The provider of tokens, or ``None`` without OAuth. An option takes precedence over the login line, as in Java."""
    if options.sasl_token_provider is not None:
        return FunctionTokens(options.sasl_token_provider)
    url = options.sasl_token_endpoint
    if url is None:
        return None
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return FileTokens(urllib.parse.unquote(parts.path), login.extensions)
    client_id, client_secret = (
        options.sasl_client_id or login.client_id,
        options.sasl_client_secret or login.client_secret,
    )
    assert client_id
    assert client_secret is not None
    return ClientCredentials(
        endpoint=url,
        client_id=client_id.strip(),
        client_secret=Secret(client_secret.text.strip()),
        tls=login.tls if parts.scheme == "https" else None,
        scope=(options.sasl_scope or login.scope).strip(),
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


def check_oauth(options: OAuthOptions, login: OAuthLogin) -> None:
    """Checks that the options name one complete source of tokens.

    Raises:
        OptionError: they do not; the message names the option to change.
    """
    if options.sasl_token_provider is not None and options.sasl_token_endpoint is not None:
        raise OptionError(f"Options '{FUNCTION}' and '{ENDPOINT}' are set.", "Set only one of them.")
    if options.sasl_token_provider is not None:
        return
    if options.sasl_token_endpoint is None:
        raise OptionError(
            f"Option '{ENDPOINT}' is missing.",
            "Set it to the token endpoint of your identity provider: 'kafka.sasl.mechanism' OAUTHBEARER needs it. Or"
            f" set '{FUNCTION}' to a function that returns tokens.",
        )
    is_file = options.sasl_token_endpoint.startswith("file:")
    if (
        options.sasl_jwt_retriever == "FileJwtRetriever"
    ) != is_file and options.sasl_jwt_retriever != "DefaultJwtRetriever":
        raise OptionError(
            f"Option 'kafka.sasl.oauthbearer.jwt.retriever.class' is {options.sasl_jwt_retriever}, and '{ENDPOINT}' is"
            f" {'a' if is_file else 'no'} file.",
            "Remove 'kafka.sasl.oauthbearer.jwt.retriever.class': the URL decides.",
        )
    if is_file:
        return
    for name, setting, given in (
        (_CLIENT_ID, "clientId", options.sasl_client_id or login.client_id),
        (_CLIENT_SECRET, "clientSecret", options.sasl_client_secret or login.client_secret),
    ):
        if not given:
            raise OptionError(
                f"Option '{name}' is missing.",
                f"Set it, or {setting} in 'kafka.sasl.jaas.config': '{ENDPOINT}' needs it.",
            )
    if options.sasl_token_endpoint.startswith("https:"):
        from spark_group_source.wire.tokens.token_request import tls_context_of

        tls_context_of(login.tls)
