"""Texts of security options to values. Each raises ValueError for what it cannot read; the message goes on from "It
must be", and shows no secret."""

from __future__ import annotations

import difflib
import importlib.util
import re

from spark_group_source.secret import Secret
from spark_group_source.wire import tls_context
from spark_group_source.wire.ssl_stores import how_to_convert

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*BY_PASSWORD, "OAUTHBEARER", "GSSAPI")


def _one_of(text: str, names: tuple[str, ...]) -> str:
    found = text.strip().upper()
    if found not in names:
        near = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
        raise ValueError(f"one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else ""))
    return found


def protocol(text: str) -> str:
    """A security protocol by Kafka's name for it."""
    return _one_of(text, PROTOCOLS)


def mechanism(text: str) -> str:
    """A SASL mechanism."""
    if text.strip().upper() == "AWS_MSK_IAM":
        raise ValueError(
            "OAUTHBEARER, with 'kafka.sasl.oauthbearer.token.provider' a function that returns tokens of"
            " aws-msk-iam-sasl-signer-python"
        )
    found = _one_of(text, MECHANISMS)
    if found == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
        raise ValueError(
            "another mechanism, or install Kerberos for Python on the driver and the executors: pip install gssapi"
            " (it needs the system's Kerberos libraries)"
        )
    return found


def secret(text: str) -> Secret:
    """Any text that is not empty."""
    if not text:
        raise ValueError("a text that is not empty")
    if text.endswith("\n"):
        raise ValueError("a text without a line break at its end: take off the one that files end with, with strip()")
    return Secret(text)


def pem(text: str) -> str:
    """PEM. ``\\n`` stands for a line end, as in properties files."""
    lines = text.strip().replace("\\n", "\n")
    if not re.search(r"-----BEGIN [A-Z0-9 ]+-----.*-----END [A-Z0-9 ]+-----", lines, re.DOTALL) or not lines.isascii():
        raise ValueError("PEM text, from '-----BEGIN ...-----' to '-----END ...-----'; a file is named in a location")
    return lines


def private_key(text: str) -> Secret:
    """A private key in PEM, encrypted: plans show this option, as Spark redacts only what speaks of passwords."""
    key = pem(text)
    if "ENCRYPTED" not in key:
        raise ValueError(
            "an encrypted key with 'kafka.ssl.key.password', since Spark shows this option in plans. Encrypt it with"
            " openssl pkcs8 -topk8 -in client.key, or name its file in 'kafka.ssl.keystore.location'"
        )
    return Secret(key)


def _store_type(store: str, text: str) -> str:
    kind = text.strip().upper()
    if kind in ("JKS", "PKCS12"):
        raise ValueError(f"PEM. {how_to_convert(store, kind)}")
    return _one_of(kind, ("PEM",))


def truststore_type(text: str) -> str:
    """``PEM``."""
    return _store_type("truststore", text)


def keystore_type(text: str) -> str:
    """``PEM``."""
    return _store_type("keystore", text)


def host_name_check(text: str) -> bool:
    """Whether the certificate must be for the host: ``https``, or an empty text for no check."""
    if text.strip().lower() not in ("https", ""):
        raise ValueError("https, or an empty text to do without the check")
    return bool(text.strip())


def protocols(text: str) -> tuple[str, ...]:
    """Versions of TLS."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names or not set(names) <= set(tls_context.PROTOCOLS):
        raise ValueError(f"one or more of {', '.join(tls_context.PROTOCOLS)}, separated by commas")
    return tuple(dict.fromkeys(names))


def ciphers(text: str) -> tuple[str, ...]:
    """Cipher suites of TLS 1.2 by Java's names, or OpenSSL's; those of TLS 1.3 cannot be chosen in Python."""
    found = []
    for name in filter(None, (each.strip() for each in text.split(","))):
        exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
        if name.startswith("TLS_") and not cipher:
            raise ValueError(f"cipher suites of TLS 1.2 ({name} is one of TLS 1.3, which are all on)")
        # OpenSSL says nothing of SHA256 where it comes with the cipher, nor of CBC.
        cipher = re.sub(r"(?<=POLY1305)_SHA256$|_CBC(?=_)", "", re.sub(r"AES_(?=\d)", "AES", cipher))
        found.append(f"{exchange}-{cipher}".replace("_", "-") if cipher else name)
    if not found:
        raise ValueError("names of cipher suites separated by commas")
    return tuple(found)
