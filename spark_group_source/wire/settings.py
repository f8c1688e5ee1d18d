"""How brokers are reached."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.secret import Secret


@dataclass(frozen=True, slots=True)
class Tls:
    """How connections are encrypted, and who proves whom to be what. All texts and files are PEM.

    Without ``ca_file`` and ``ca_text`` the authorities that the system trusts are trusted. ``key_file`` holds the
    client's private key and its certificate chain; ``key_text`` the key, with the chain in ``chain_text``. ``versions``
    are those of TLS that may be spoken, ``ciphers`` in OpenSSL's names those of TLS 1.2; empty is OpenSSL's choice.
    """

    ca_file: str | None = None
    ca_text: str | None = None
    key_file: str | None = None
    key_text: Secret | None = None
    chain_text: str | None = None
    key_password: Secret | None = None
    check_host_name: bool = True
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sasl:
    """How a client says who it is. What a mechanism has no use for is ``None``.

    ``token_provider`` is the ``module:function`` that tells OAUTHBEARER tokens.
    """

    mechanism: str
    username: str | None = None
    password: Secret | None = None
    token_provider: str | None = None
    kerberos_service: str | None = None


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Settings of all connections of one query; picklable and hashable. Times are in seconds, sizes in bytes.

    ``connect_timeout`` and ``reconnect_backoff`` double with each failure in a row, up to their ``_max``. Connections
    that were not used for ``max_idle`` are not used again: a firewall may have forgotten them.
    ``canonical_bootstrap``: each bootstrap server is replaced by the names of its addresses. ``receive_buffer`` and
    ``send_buffer`` of -1 leave the sizes to the operating system. ``source_host`` and ``source_ports``, the first and
    the last, are where connections come from.
    Without ``tls`` nothing is encrypted, without ``sasl`` nobody says who he is.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str
    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    connect_timeout_max: float = 30.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    reconnect_backoff: float = 0.05
    reconnect_backoff_max: float = 1.0
    max_idle: float = 540.0
    canonical_bootstrap: bool = False
    receive_buffer: int = -1
    send_buffer: int = -1
    source_host: str | None = None
    source_ports: tuple[int, int] | None = None
    tls: Tls | None = None
    sasl: Sasl | None = None
