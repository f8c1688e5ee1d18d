"""SASL logins: ``sasl.jaas.config`` in the form of Kafka's Java client, and the settings of an OAuthBearerLoginModule.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";
    clientId="..." clientSecret="..." scope="..." extension_NAME="..." ssl.truststore.location="..."

The quoting rules are those of ``java.io.StreamTokenizer``, which Kafka's client uses. The ``ssl.*`` settings are for
the token endpoint, not for the brokers. Other settings have no effect, as in Java, but a name that is almost one of
these is an error. No error shows a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.auth import msk_iam
from spark_group_source.auth.msk_iam import IamLogin
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tls_options import TLS_OPTIONS
from spark_group_source.text import Secret

_EXTENSION = "extension_"
_NAMES = ("clientId", "clientSecret", "scope")
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")

_TLS_ROWS = {row.name.removeprefix("kafka."): row for row in TLS_OPTIONS}


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
        if row.place.startswith("tls."):
            fields[row.place.removeprefix("tls.")] = parsed
    return Tls(**fields, in_login_line=True)


EXAMPLE = (
    'a line such as: org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";'
)
_TOKEN = re.compile(
    r"""
    (?P<blank> (?: \s | \ufeff )+ | //[^\n]* | /\*.*?\*/ | \\+[nrt] | \\(?=\s) )
    | "(?P<double> (?:[^"\\\n]|\\.)* )"
    | '(?P<single> (?:[^'\\\n]|\\.)* )'
    | (?P<word> [^\s"'=;/\\]+ )
    | (?P<mark> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
"""A blank may be a line break that a secret store or a properties file has turned into ``\\n``: outside of quotes no
token of Java's tokenizer has a backslash."""
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_PASSWORD_MODULES = ("PlainLoginModule", "ScramLoginModule")
_ALTERNATIVES = {
    "Krb5LoginModule": "a PlainLoginModule or ScramLoginModule. Instead of Krb5LoginModule set"
    " 'kafka.sasl.kerberos.service.name', and get a ticket with kinit or KRB5_CLIENT_KTNAME"
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
    if re.match(r"[\s\ufeff]*[\"'`].*LoginModule", text):
        raise ValueError(f"{EXAMPLE} (without quotes around the whole line)")
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
