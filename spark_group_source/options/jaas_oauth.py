"""The settings of Java's OAuthBearerLoginModule in ``sasl.jaas.config``.

    clientId="..." clientSecret="..." scope="..." extension_NAME="..." ssl.truststore.location="..."

The ``ssl.*`` settings are for the token endpoint, not for the brokers. As in Java, unknown settings have no effect. No
error shows a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.options.security_parsers import (
    ciphers,
    host_name_check,
    keystore_type,
    pem,
    private_key,
    protocols,
    secret,
    truststore_type,
)
from spark_group_source.options.value_parsers import non_blank
from spark_group_source.secret import Secret
from spark_group_source.wire.settings import Tls

_EXTENSION = "extension_"
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")

_TLS_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "ssl.truststore.location": ("ca_file", non_blank),
    "ssl.truststore.certificates": ("ca_text", pem),
    "ssl.keystore.location": ("key_file", non_blank),
    "ssl.keystore.key": ("key_text", private_key),
    "ssl.keystore.certificate.chain": ("chain_text", pem),
    "ssl.key.password": ("key_password", secret),
    "ssl.endpoint.identification.algorithm": ("check_host_name", host_name_check),
    "ssl.enabled.protocols": ("versions", protocols),
    "ssl.cipher.suites": ("ciphers", ciphers),
}
_STORE_TYPES = {"ssl.truststore.type": truststore_type, "ssl.keystore.type": keystore_type}


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """What a login line says of an OAuth client; ``tls`` is for the token endpoint."""

    client_id: str = ""
    client_secret: Secret | None = None
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    tls: Tls = field(default_factory=Tls)


def login(settings: Mapping[str, str]) -> OAuthLogin:
    """The login of an OAuthBearerLoginModule.

    Raises:
        ValueError: a setting is invalid; the message completes "It must be".
    """
    if any(name.startswith("unsecured") for name in settings):
        raise ValueError(
            "a login line without settings of unsecured tokens, which no broker in production accepts. To test with"
            " them set 'kafka.sasl.oauthbearer.token.provider' to a function that returns tokens"
        )
    client_secret = settings.get("clientSecret", "").strip()
    return OAuthLogin(
        settings.get("clientId", "").strip(),
        Secret(client_secret) if client_secret else None,
        settings.get("scope", "").strip(),
        _extensions(settings),
        _tls(settings),
    )


def _extensions(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {name.removeprefix(_EXTENSION): text for name, text in settings.items() if name.startswith(_EXTENSION)}
    for name, text in found.items():
        if not _NAME.fullmatch(name) or name == "auth":
            raise ValueError("a login line whose extensions have names of letters, and not the name auth")
        if not _VALUE.fullmatch(text):
            raise ValueError(f"a login line with printable ASCII text in {_EXTENSION}{name}")
    return tuple(sorted(found.items()))


def _tls(settings: Mapping[str, str]) -> Tls:
    fields: dict[str, Any] = {}
    for name, text in settings.items():
        if not name.startswith("ssl."):
            continue
        if name not in _TLS_FIELDS and name not in _STORE_TYPES:
            known = ", ".join([*_TLS_FIELDS, *_STORE_TYPES])
            raise ValueError(f"a login line without {name}, which this source does not support; it supports {known}")
        try:
            if name in _STORE_TYPES:
                _STORE_TYPES[name](text)
            else:
                field, parse = _TLS_FIELDS[name]
                fields[field] = parse(text)
        except ValueError as error:
            raise ValueError(f"a login line whose {name} is {error}") from None
    return Tls(**fields)
