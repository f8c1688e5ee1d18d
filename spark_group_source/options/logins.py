"""SASL logins: ``sasl.jaas.config`` in the form of Kafka's Java client, and the OAuth options.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

The quoting rules are those of ``java.io.StreamTokenizer``, which Kafka's client uses. The settings of an
OAuthBearerLoginModule are

    clientId="..." clientSecret="..." scope="..." extension_NAME="..." ssl.truststore.location="..."

The ``ssl.*`` settings are for the token endpoint, not for the brokers. Other settings have no effect, as in Java, but
a name that is almost one of these is an error. No error shows a value.
"""

from __future__ import annotations

import difflib
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError
from spark_group_source.options import msk_iam
from spark_group_source.options.msk_iam import IamLogin
from spark_group_source.options.option import Option
from spark_group_source.options.tls import STORE_TYPES, TLS_ROWS, check_tls, non_blank_secret
from spark_group_source.options.values import (
    boolean,
    buffer,
    endpoint_url,
    importable_function,
    jwt_retriever,
    jwt_validator,
    milliseconds,
    min_period,
    non_blank,
    window_factor,
    window_jitter,
)
from spark_group_source.text import Secret
from spark_group_source.wire.settings import Tls
from spark_group_source.wire.tokens import ClientCredentials, FileTokens, FunctionTokens, RefreshWindow, TokenProvider

_EXTENSION = "extension_"
_NAMES = ("clientId", "clientSecret", "scope")
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")

_TLS_ROWS = {row.name: row for row in (*TLS_ROWS, *STORE_TYPES)}


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """What a JAAS config says of an OAuth client; ``tls`` is for the token endpoint."""

    client_id: str = ""
    client_secret: Secret | None = None
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    tls: Tls = field(default_factory=lambda: Tls(in_login_line=True))


def oauth_login(settings: Mapping[str, str]) -> OAuthLogin:
    """The login of an OAuthBearerLoginModule.

    Raises:
        ValueError: a setting is invalid; the message completes "It must be".
    """
    if any(name.startswith("unsecured") for name in settings):
        raise ValueError(
            "a JAAS config without settings of unsecured tokens, which no broker in production accepts. To test with"
            " them set 'kafka.sasl.oauthbearer.token.provider' to a function that returns tokens"
        )
    for name in settings:
        _check_spelling(name)
    client_secret = settings.get("clientSecret", "").strip()
    return OAuthLogin(
        settings.get("clientId", "").strip(),
        Secret(client_secret) if client_secret else None,
        settings.get("scope", "").strip(),
        _extensions(settings),
        _tls(settings),
    )


def _check_spelling(name: str) -> None:
    """Raises ValueError for a name that is almost a known one. As in Java, all other unknown names have no effect."""
    if name in _NAMES or name.startswith((_EXTENSION, "ssl.")):
        return
    spelled, separator, _ = name.partition("_")
    names = {_EXTENSION.lower(): f"{_EXTENSION}NAME"} if separator else {known.lower(): known for known in _NAMES}
    spelled = f"{spelled}_" if separator else name
    near = difflib.get_close_matches(spelled.lower(), names, n=1, cutoff=0.8)
    if near:
        raise ValueError(f"a JAAS config without the unknown setting {name} (did you mean {names[near[0]]}?)")


def _extensions(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {name.removeprefix(_EXTENSION): text for name, text in settings.items() if name.startswith(_EXTENSION)}
    for name, text in found.items():
        if not _NAME.fullmatch(name) or name == "auth":
            raise ValueError("a JAAS config whose extensions have names of letters, and not the name auth")
        if not _VALUE.fullmatch(text):
            raise ValueError(f"a JAAS config with printable ASCII text in {_EXTENSION}{name}")
    return tuple(sorted(found.items()))


def _tls(settings: Mapping[str, str]) -> Tls:
    fields: dict[str, Any] = {}
    for name, text in settings.items():
        if not name.startswith("ssl."):
            continue
        row = _TLS_ROWS.get(name)
        if row is None:
            known = ", ".join(_TLS_ROWS)
            raise ValueError(f"a JAAS config without {name}, which this source does not support; it supports {known}")
        try:
            parsed = row.parse(text)
        except ValueError as error:
            raise ValueError(f"a JAAS config whose {name} is {error}") from None
        if row not in STORE_TYPES:
            fields[row.field] = parsed
    return Tls(**fields, in_login_line=True)


EXAMPLE = (
    'a line such as: org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";'
)
_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | //[^\n]* | /\*.*?\*/ )
    | "(?P<double> (?:[^"\\\n]|\\.)* )"
    | '(?P<single> (?:[^'\\\n]|\\.)* )'
    | (?P<word> [^\s"'=;/]+ )
    | (?P<mark> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_PASSWORD_MODULES = ("PlainLoginModule", "ScramLoginModule")
_ALTERNATIVES = {
    "Krb5LoginModule": "a PlainLoginModule or ScramLoginModule. Instead of Krb5LoginModule set"
    " 'kafka.sasl.kerberos.service.name', and get a ticket with kinit or KRB5_CLIENT_KTNAME",
}


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """The login of a PlainLoginModule or ScramLoginModule."""

    username: str
    password: Secret


def parse_jaas(text: str) -> PasswordLogin | OAuthLogin | IamLogin:
    """The login of a module in any package, as some platforms rename it.

    Raises:
        ValueError: the line is invalid; the message completes "It must be".
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise ValueError(f"{EXAMPLE} (the line must end with a semicolon)")
    module = tokens[0][1].rpartition(".")[2]
    if module not in (*_PASSWORD_MODULES, "IAMLoginModule", "OAuthBearerLoginModule"):
        raise ValueError(_ALTERNATIVES.get(module, f"a {' or '.join(_PASSWORD_MODULES)}, {EXAMPLE}"))
    if tokens[1][1].lower() not in _FLAGS:
        raise ValueError(f"{EXAMPLE} ('required' must follow the module's name)")
    settings = _settings(tokens[2:-1])
    if module == "OAuthBearerLoginModule" and not any(name.startswith("aws") for name in settings):
        return oauth_login(settings)
    if module not in _PASSWORD_MODULES:
        return msk_iam.login(module, settings)
    if settings.get("tokenauth", "").lower() == "true":
        raise ValueError("a JAAS config without tokenauth, because this source does not support delegation tokens")
    if not settings.get("username") or "password" not in settings:
        raise ValueError(f"{EXAMPLE} (username and password are required)")
    return PasswordLogin(settings["username"], Secret(settings["password"]))


def _tokens(text: str) -> list[tuple[str, str]]:
    """The kind and value of each token; a quoted text is a word."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"{EXAMPLE} (a quote is not closed, or a value with special characters is not in quotes)")
        kind, at = match.lastgroup, match.end()
        if kind in ("double", "single"):
            tokens.append(("word", _unescaped(match[kind])))
        elif kind != "blank":
            tokens.append((kind, match[kind]))
    return tokens


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\([0-3]?[0-7]{1,2}|.)", plain, text, flags=re.DOTALL)


def _settings(tokens: list[tuple[str, str]]) -> dict[str, str]:
    settings = {}
    for at in range(0, len(tokens), 3):
        part = tokens[at : at + 3]
        if [kind for kind, _ in part] != ["word", "mark", "word"] or part[1][1] != "=":
            raise ValueError(f"{EXAMPLE} (name=value pairs must follow, with the values in double quotes)")
        settings[part[0][1]] = part[2][1]
    return settings


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
    """The provider of tokens. An option takes precedence over the JAAS config, as in Java.

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
            "Remove all settings of the JAAS config, except extensions.",
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
