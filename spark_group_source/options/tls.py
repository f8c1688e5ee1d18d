"""The TLS settings, of connections to brokers as well as to a token endpoint: their names, parsers and checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_group_source.errors import OptionError
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
from spark_group_source.wire.settings import Tls


@dataclass(frozen=True, slots=True)
class TlsRow:
    """The name of a setting without ``kafka.``, its field in ``Tls``, and the parser of its text."""

    name: str
    field: str
    parse: Callable[[str], Any]
    secret: bool = False


TLS_ROWS = (
    TlsRow("ssl.truststore.location", "ca_file", non_blank),
    TlsRow("ssl.truststore.certificates", "ca_text", pem, secret=True),
    TlsRow("ssl.keystore.location", "key_file", non_blank),
    TlsRow("ssl.keystore.certificate.chain", "chain_text", pem, secret=True),
    TlsRow("ssl.keystore.key", "key_text", private_key, secret=True),
    TlsRow("ssl.key.password", "key_password", secret, secret=True),
    TlsRow("ssl.endpoint.identification.algorithm", "check_host_name", host_name_check),
    TlsRow("ssl.enabled.protocols", "versions", protocols),
    TlsRow("ssl.cipher.suites", "ciphers", ciphers),
)

STORE_TYPES = (
    TlsRow("ssl.truststore.type", "truststore_type", truststore_type),
    TlsRow("ssl.keystore.type", "keystore_type", keystore_type),
)
"""Settings that ``Tls`` does not have, because the only valid value is PEM."""


def check_tls(tls: Tls) -> None:
    """Checks that the settings fit together and name usable files.

    Raises:
        OptionError: they do not; the message names the setting to change.
    """
    location, key, chain = (tls.name(f"ssl.keystore.{part}") for part in ("location", "key", "certificate.chain"))
    password = tls.name("ssl.key.password")
    if tls.ca_file is not None and tls.ca_text is not None:
        both = f"{tls.name('ssl.truststore.location')} and {tls.name('ssl.truststore.certificates')}"
        raise OptionError(f"Options {both} are set.", "Set only one of them.")
    if tls.key_file is not None and tls.key_text is not None:
        raise OptionError(f"Options {location} and {key} are set.", "Set only one of them.")
    for present, missing, is_alone in (
        (key, chain, tls.key_text is not None and tls.chain_text is None),
        (chain, key, tls.chain_text is not None and tls.key_text is None),
    ):
        if is_alone:
            raise OptionError(f"Option {present} is set without {missing}.", "Set both of them.")
    if tls.key_password is not None and tls.key_file is None and tls.key_text is None:
        action = f"Set {location} to the file of the key, or remove the password."
        raise OptionError(f"Option {password} is set without a key.", action)
    from spark_group_source.wire.tls_context import ssl_context  # imports ssl, which most queries do not need

    ssl_context(tls)
