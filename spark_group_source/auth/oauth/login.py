"""The settings of an OAuthBearerLoginModule in a JAAS config.

    clientId="..." clientSecret="..." scope="..." extension_NAME="..." ssl.truststore.location="..."

The ``ssl.*`` settings are for the token endpoint, not for the brokers. Other settings have no effect, as in Java, but a
name that is almost one of these is an error. No error shows a value.
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
