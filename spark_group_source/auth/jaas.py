"""The option ``sasl.jaas.config`` in the form of Kafka's Java client.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

The quoting rules are those of ``java.io.StreamTokenizer``, which Kafka's client uses. No error shows a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_group_source.auth.msk_iam_options import IamLogin, iam_login
from spark_group_source.auth.oauth.login import OAuthLogin, oauth_login
from spark_group_source.text import Secret

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
_IN_QUOTES = re.compile(r"[\s\ufeff]*[\"'`].*LoginModule")
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
    """Builds the login for a module in any package, because some platforms rename it.

    Raises:
        ValueError: the line is invalid; the message is the rest of a sentence that begins with "It must be".
    """
    if _IN_QUOTES.match(text):
        raise ValueError(f"{EXAMPLE} (without quotes around the whole line)")
    module, settings = _module_and_settings(_tokens(text))
    if module in _PASSWORD_MODULES:
        return _password_login(settings)
    if module == "IAMLoginModule":
        return iam_login(module, settings)
    for name in settings:
        if name.startswith("aws"):
            return iam_login(module, settings)
    return oauth_login(settings)


def _module_and_settings(tokens: list[tuple[str, str]]) -> tuple[str, dict[str, str]]:
    """The module without its package, and its settings by name."""
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise ValueError(f"{EXAMPLE} (the line must end with a semicolon)")
    module = tokens[0][1].rpartition(".")[2]
    if module in _ALTERNATIVES:
        raise ValueError(_ALTERNATIVES[module])
    if module not in (*_PASSWORD_MODULES, "IAMLoginModule", "OAuthBearerLoginModule"):
        raise ValueError(f"a {' or '.join(_PASSWORD_MODULES)}, {EXAMPLE}")
    if tokens[1][1].lower() not in _FLAGS:
        raise ValueError(f"{EXAMPLE} ('required' must follow the module's name)")
    return module, _settings(tokens[2:-1])


def _password_login(settings: Mapping[str, str]) -> PasswordLogin:
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
        if escaped[0] in "01234567":
            return chr(int(escaped, 8))
        return _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\([0-3]?[0-7]{1,2}|.)", plain, text, flags=re.DOTALL)


def _settings(tokens: list[tuple[str, str]]) -> dict[str, str]:
    settings = {}
    for at in range(0, len(tokens), 3):
        match tokens[at : at + 3]:
            case [("word", name), ("mark", "="), ("word", value)]:
                settings[name] = value
            case _:
                raise ValueError(f"{EXAMPLE} (name=value pairs must follow, with the values in double quotes)")
    return settings
