"""``ssl.cipher.suites``: cipher suites of TLS 1.2, by Java's and IANA's names or by OpenSSL's.

Java has a list of names where OpenSSL reads a whole language: ``aNULL`` and ``AECDH-AES256-SHA`` accept a server that
has no certificate, ``eNULL`` encrypts nothing, and ``@SECLEVEL=0`` allows both. Only names pass, and only of suites in
which the server has a certificate and the session is encrypted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from spark_group_source.option import listed
from spark_group_source.text import quoted

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_IANA = re.compile(r"(?:TLS|SSL)_(\w+?)_WITH_(\w+)")
_UNSAFE = re.compile(r"_anon_|_anon$|NULL|EXPORT|PSK|SRP|KRB5")
"""Parts of IANA's names of suites without a server certificate, or without strong encryption."""

_SIGNALS = ("TLS_EMPTY_RENEGOTIATION_INFO_SCSV", "TLS_FALLBACK_SCSV")
"""Values in Java's lists that are no suites (RFC 5746 and 7507). OpenSSL sends the first one by itself."""

_KEY_EXCHANGES = ("kx-ecdhe", "kx-dhe", "kx-rsa")
_AUTHENTICATIONS = ("auth-ecdsa", "auth-rsa", "auth-dss")


def cipher_suites(text: str) -> tuple[str, ...]:
    """OpenSSL's names of the suites. Java's names that this OpenSSL does not have are left out.

    Raises:
        ValueError: a name is unknown, or belongs to an unsafe suite or to TLS 1.3. The message is the rest of a
            sentence that begins with "It must be".
    """
    # Java's lists have commas, those of OpenSSL and librdkafka colons.
    names = listed(text, separators=",:")
    if not names:
        raise ValueError("names of cipher suites separated by commas")
    suites = []
    for name in names:
        suite = _openssl_name(name)
        if suite is not None:
            suites.append(suite)
    if not suites:
        raise ValueError(f"names of cipher suites, at least one of which {_openssl_version()} has")
    return tuple(dict.fromkeys(suites))


def _openssl_name(name: str) -> str | None:
    """OpenSSL's name of a suite; ``None`` if it has none."""
    if name in _SIGNALS:
        return None
    if not _NAME.fullmatch(name):
        raise ValueError(
            "names of cipher suites separated by commas, without the operators and keywords of OpenSSL"
            f" ({quoted(name)} is no name)"
        )
    iana = _IANA.fullmatch(name)
    if iana is None:
        return _of_openssl(name)
    return _of_iana(name, iana[1], iana[2])


def _of_iana(name: str, exchange: str, cipher: str) -> str | None:
    if _UNSAFE.search(name):
        raise _unsafe(name)
    suite = _converted(exchange, cipher)
    known = _known_suites().get(suite)
    if known is None:
        return None
    if not _is_safe(known):
        raise _unsafe(name)
    return suite


def _of_openssl(name: str) -> str:
    if name.startswith("TLS_"):
        raise ValueError(
            f"cipher suites of TLS 1.2 ({quoted(name)} belongs to TLS 1.3, whose suites are all enabled: Python cannot"
            " choose among them)"
        )
    known = _known_suites().get(name)
    if known is None:
        raise ValueError(f"names of cipher suites ({quoted(name)} is none that {_openssl_version()} has)")
    if not _is_safe(known):
        raise _unsafe(name)
    return name


def _unsafe(name: str) -> ValueError:
    return ValueError(f"cipher suites with a certificate of the server and with encryption ({quoted(name)} lacks that)")


def _converted(exchange: str, cipher: str) -> str:
    """OpenSSL's name for the parts of IANA's: ``ECDHE-RSA-AES128-SHA`` for ``ECDHE_RSA`` and ``AES_128_CBC_SHA``."""
    cipher = cipher.replace("3DES_EDE_CBC", "DES_CBC3")
    # OpenSSL's names omit CBC, and SHA256 if it belongs to the cipher.
    cipher = re.sub(r"_CBC(?=_)|(?<=POLY1305)_SHA256$", "", cipher)
    cipher = re.sub(r"(?<=AES|RIA|LIA)_(?=\d)|(?<=CCM)_(?=8)", "", cipher)
    if exchange == "RSA":
        return cipher.replace("_", "-")
    if exchange == "ECDHE_RSA" and cipher.startswith("ARIA"):
        exchange = "ECDHE"
    return f"{exchange}_{cipher}".replace("_", "-")


def _is_safe(suite: Mapping[str, Any]) -> bool:
    if suite["auth"] not in _AUTHENTICATIONS:
        return False
    if suite["kea"] not in _KEY_EXCHANGES:
        return False
    is_encrypted: bool = suite["strength_bits"] > 0
    return is_encrypted


@cache
def _known_suites() -> dict[str, Mapping[str, Any]]:
    """The suites of this OpenSSL by name, including those that it disables by default."""
    import ssl  # noqa: PLC0415 -- it takes 20 ms, and most queries do not need it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return {str(suite["name"]): suite for suite in context.get_ciphers()}


def _openssl_version() -> str:
    import ssl  # noqa: PLC0415 -- as above

    return ssl.OPENSSL_VERSION
