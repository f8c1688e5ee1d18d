"""The settings of an OAuthBearerLoginModule in a JAAS config.

    clientId="..." clientSecret="..." scope="..." extension_NAME="..." ssl.truststore.location="..."

The ``ssl.*`` settings are for the token endpoint, not for the brokers. Other settings have no effect, as in Java, but a
mistyped name of one of these settings is an error. No error shows a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    """An OAuth client in a JAAS config. ``tls`` is for the token endpoint."""

    client_id: str = ""
    client_secret: Secret | None = None
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    tls: Tls = field(default_factory=lambda: Tls(in_jaas_config=True))


def oauth_login(settings: Mapping[str, str]) -> OAuthLogin:
    """Builds the login for an OAuthBearerLoginModule.

    Raises:
        ValueError: a setting is invalid; the message is the rest of a sentence that begins with "It must be".
    """
    _check_no_unsecured_tokens(settings)
    for name in settings:
        _check_spelling(name)
    client_secret = None
    if settings.get("clientSecret", "").strip():
        client_secret = Secret(settings["clientSecret"].strip())
    return OAuthLogin(
        settings.get("clientId", "").strip(),
        client_secret,
        settings.get("scope", "").strip(),
        _extensions(settings),
        _tls(settings),
    )


def _check_no_unsecured_tokens(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name.startswith("unsecured"):
            raise ValueError(
                "a JAAS config without settings of unsecured tokens, which no broker in production accepts. To test"
                " with them set 'kafka.sasl.oauthbearer.token.provider' to a function that returns tokens"
            )


def _check_spelling(name: str) -> None:
    """Raises ValueError for a name that is almost a known one. As in Java, all other unknown names have no effect."""
    if name in _NAMES:
        return
    if name.startswith((_EXTENSION, "ssl.")):
        return
    near = _nearest(name)
    if near is not None:
        raise ValueError(f"a JAAS config without the unknown setting {name} (did you mean {near}?)")


def _nearest(name: str) -> str | None:
    """The known name of which ``name`` may be a misspelling."""
    known = {each.lower(): each for each in _NAMES}
    prefix, separator, _ = name.partition("_")
    if separator:
        name = f"{prefix}_"
        known = {_EXTENSION.lower(): f"{_EXTENSION}NAME"}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.8)
    if not near:
        return None
    return known[near[0]]


def _extensions(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    extensions = {}
    for name, text in settings.items():
        if name.startswith(_EXTENSION):
            extension = name.removeprefix(_EXTENSION)
            _check_extension(extension, text)
            extensions[extension] = text
    return tuple(sorted(extensions.items()))


def _check_extension(name: str, text: str) -> None:
    if not _NAME.fullmatch(name) or name == "auth":
        raise ValueError("a JAAS config whose extensions have names of letters, and not the name auth")
    if not _VALUE.fullmatch(text):
        raise ValueError(f"a JAAS config with printable ASCII text in {_EXTENSION}{name}")


def _tls(settings: Mapping[str, str]) -> Tls:
    fields: dict[str, Any] = {}
    for name, text in settings.items():
        if not name.startswith("ssl."):
            continue
        row = _TLS_ROWS.get(name)
        if row is None:
            known = ", ".join(_TLS_ROWS)
            raise ValueError(f"a JAAS config without {name}, which this source does not support. It supports {known}")
        try:
            parsed = row.parse(text)
        except ValueError as error:
            raise ValueError(f"a JAAS config whose {name} is {error}") from None
        if row.place.startswith("tls."):
            fields[row.place.removeprefix("tls.")] = parsed
    return Tls(**fields, in_jaas_config=True)
