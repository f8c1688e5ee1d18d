"""The TLS settings of connections to brokers and to a token endpoint: their names, parsers and checks.

A parser raises ValueError for an invalid text. The message is the rest of a sentence that begins with "It must be", and
shows no secret.
"""

from __future__ import annotations

import re

from spark_group_source.auth.cipher_suites import cipher_suites
from spark_group_source.auth.java_stores import how_to_convert
from spark_group_source.auth.pem import CERTIFICATE, PRIVATE_KEY, is_base64_of_pem, select
from spark_group_source.auth.tls import TLS_VERSIONS, Tls
from spark_group_source.errors import OptionError
from spark_group_source.option import Option, listed, non_blank, one_of, secret
from spark_group_source.text import Secret


def certificates(text: str) -> str:
    """The certificates in PEM text. Its line breaks may be spaces, tabs or ``\\n``, as secret stores make of them."""
    return _pem(text, CERTIFICATE, "certificate", "CERTIFICATE")


def private_key(text: str) -> Secret:
    """An encrypted private key in PEM: Spark shows this option, as it only redacts names with "password"."""
    key = _pem(text, PRIVATE_KEY, "private key", "ENCRYPTED PRIVATE KEY")
    if "ENCRYPTED" not in key:
        raise ValueError(
            "an encrypted key with 'kafka.ssl.key.password', because Spark shows this option in plans. Encrypt the key"
            " with openssl pkcs8 -topk8 -in client.key, or set 'kafka.ssl.keystore.location' to its file"
        )
    return Secret(key)


def _pem(text: str, labels: re.Pattern[str], what: str, label: str) -> str:
    expected = (
        f"PEM text, from '-----BEGIN {label}-----' to '-----END {label}-----', with its line breaks or with spaces in"
        " their place; to name a file set the location option"
    )
    try:
        found = select(text, labels)
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from None
    if not found:
        raise ValueError(f"{expected} ({_missing_block(text, what)})")
    return found


def _missing_block(text: str, what: str) -> str:
    if is_base64_of_pem(text):
        return "the text is the base64 of PEM: decode it once"
    if "BEGIN" in text:
        return f"the text has no {what}"
    return "the markers are missing"


def _store_type(store: str, text: str) -> str:
    kind = text.strip().upper()
    if kind in ("JKS", "PKCS12"):
        raise ValueError(f"PEM. {how_to_convert(store, kind)}")
    return one_of(kind, ("PEM",))


def truststore_type(text: str) -> str:
    """``PEM``."""
    return _store_type("truststore", text)


def keystore_type(text: str) -> str:
    """``PEM``."""
    return _store_type("keystore", text)


def host_name_check(text: str) -> bool:
    """Whether to check the host name of the certificate: ``https``, or an empty text to skip the check."""
    if text.strip().lower() not in ("https", ""):
        raise ValueError("https, or an empty text to skip the check")
    return bool(text.strip())


def protocols(text: str) -> tuple[str, ...]:
    """TLS versions."""
    names = listed(text)
    if not names or not set(names) <= set(TLS_VERSIONS):
        raise ValueError(f"one or more of {', '.join(TLS_VERSIONS)}, separated by commas")
    return tuple(dict.fromkeys(names))


# fmt: off
TLS_OPTIONS = (
    Option("kafka.ssl.truststore.location", "tls.ca_file", non_blank,
           "PEM file with the trusted CAs."),
    Option("kafka.ssl.truststore.certificates", "tls.ca_text", certificates,
           "The trusted CAs as PEM text.", secret=True),
    Option("kafka.ssl.keystore.location", "tls.key_file", non_blank,
           "PEM file with the client's private key and certificate chain."),
    Option("kafka.ssl.keystore.certificate.chain", "tls.chain_text", certificates,
           "The client's certificate chain as PEM text.", secret=True),
    Option("kafka.ssl.keystore.key", "tls.key_text", private_key,
           "The client's encrypted private key as PEM text.", secret=True),
    Option("kafka.ssl.key.password", "tls.key_password", secret,
           "Password of the client's private key.", secret=True),
    Option("kafka.ssl.endpoint.identification.algorithm", "tls.check_host_name", host_name_check,
           "https, or empty to skip the host name check."),
    Option("kafka.ssl.enabled.protocols", "tls.versions", protocols,
           "Enabled TLS versions."),
    Option("kafka.ssl.cipher.suites", "tls.ciphers", cipher_suites,
           "Enabled cipher suites of TLS 1.2."),
    Option("kafka.ssl.truststore.type", "without_effect.truststore_type", truststore_type,
           "Format of the truststore: PEM."),
    Option("kafka.ssl.keystore.type", "without_effect.keystore_type", keystore_type,
           "Format of the keystore: PEM."),
)
# fmt: on
"""The rows of the table for TLS. Store types have no field in ``Tls``, because the only valid value is PEM."""


def check_tls(tls: Tls) -> None:
    """Checks that the settings fit together and name usable files.

    Raises:
        OptionError: they do not fit, or a file is unusable. The message names the setting to change.
    """
    _check_truststore(tls)
    _check_keystore(tls)
    from spark_group_source.auth.certificates import ssl_context  # imports ssl, which most queries do not need

    ssl_context(tls)


def _check_truststore(tls: Tls) -> None:
    if tls.ca_file is not None and tls.ca_text is not None:
        both = f"{tls.name('ssl.truststore.location')} and {tls.name('ssl.truststore.certificates')}"
        raise OptionError(f"Options {both} are set.", "Set only one of them.")


def _check_keystore(tls: Tls) -> None:
    location = tls.name("ssl.keystore.location")
    key = tls.name("ssl.keystore.key")
    chain = tls.name("ssl.keystore.certificate.chain")
    has_file = tls.key_file is not None
    has_key = tls.key_text is not None
    has_chain = tls.chain_text is not None
    if has_file and has_key:
        raise OptionError(f"Options {location} and {key} are set.", "Set only one of them.")
    if has_key and not has_chain:
        raise OptionError(f"Option {key} is set without {chain}.", "Set both of them.")
    if has_chain and not has_key:
        raise OptionError(f"Option {chain} is set without {key}.", "Set both of them.")
    if has_file or has_key or tls.key_password is None:
        return
    action = f"Set {location} to the file of the key, or remove the password."
    raise OptionError(f"Option {tls.name('ssl.key.password')} is set without a key.", action)
