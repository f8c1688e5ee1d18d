"""Settings of TLS for connections to brokers or to a token endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.text import Secret

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
"""TLS versions by Java's names, which brokers of Kafka 3.3 and later support by default."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption, trusted CAs and the client's certificate. All texts and files are PEM.

    Without ``ca_file`` and ``ca_text`` the client trusts the CAs that the system trusts. ``key_file`` holds the
    client's private key and its certificate chain; ``key_text`` holds the key, and ``chain_text`` the chain.
    ``versions`` are the allowed TLS versions. ``ciphers`` are the cipher suites of TLS 1.2, by OpenSSL's names; if
    empty, OpenSSL chooses. ``in_jaas_config``: the settings are those of a token endpoint, from the JAAS config.
    """

    ca_file: str | None = None
    ca_text: str | None = None
    key_file: str | None = None
    key_text: Secret | None = None
    chain_text: str | None = None
    key_password: Secret | None = None
    check_host_name: bool = True
    versions: tuple[str, ...] = TLS_VERSIONS
    ciphers: tuple[str, ...] = ()
    in_jaas_config: bool = False

    def name(self, setting: str) -> str:
        """Names a setting in errors, for example ``ssl.key.password``."""
        if self.in_jaas_config:
            return f"'{setting}' in 'kafka.sasl.jaas.config'"
        return f"'kafka.{setting}'"
