"""Settings of connections to brokers.

Java's key and trust stores are rejected: Python reads PEM. The message has the command that converts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from socket import socket

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.text import Secret
from spark_group_source.wire.security import Call, ExportedToken, SignIn, TlsLayer
from spark_group_source.wire.tokens import ClientCredentials, TokenProvider, token_cache_of

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
"""TLS versions by Java's names: those that brokers from 3.3 on support by default."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption, trusted CAs and the client's certificate. All texts and files are PEM.

    Without ``ca_file`` and ``ca_text`` the client trusts the CAs that the system trusts. ``key_file`` holds the
    client's private key and its certificate chain; ``key_text`` holds the key, and ``chain_text`` the chain.
    ``versions`` are the allowed TLS versions. ``ciphers`` are the cipher suites of TLS 1.2, by OpenSSL's names; if
    empty, OpenSSL chooses. ``in_login_line``: the settings come from the JAAS config, and are for a token endpoint.
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
    in_login_line: bool = False

    def name(self, setting: str) -> str:
        """Names a setting in errors, for example ``ssl.key.password``."""
        return f"'{setting}' in 'kafka.sasl.jaas.config'" if self.in_login_line else f"'kafka.{setting}'"

    def handshake(self, sock: socket, host: str, broker: str, deadline: Deadline) -> socket:
        """As :meth:`TlsLayer.handshake`."""
        from spark_group_source.wire import tls  # imports ssl, which takes 20 ms

        return tls.handshake(sock, host, broker, self, deadline)

    def session_error(self, broker: str, error: OSError, *, responded: bool) -> GroupSourceError | None:
        """As :meth:`TlsLayer.session_error`."""
        from spark_group_source.wire import tls

        return tls.session_error(broker, error, responded=responded) if tls.is_tls_error(error) else None


@dataclass(frozen=True, slots=True)
class Sasl:
    """The client's credentials. A field that the mechanism does not use is ``None``.

    ``token_provider`` provides OAUTHBEARER tokens.
    """

    mechanism: str
    username: str | None = None
    password: Secret | None = None
    token_provider: TokenProvider | None = None
    kerberos_service: str | None = None

    def authenticate(self, host: str, broker: str, call: Call, deadline: Deadline) -> float | None:
        """As :meth:`SignIn.authenticate`."""
        from spark_group_source.wire import sasl  # imports kafka-python's clients, which takes 0.1 s

        return sasl.authenticate(self, host, broker, call, deadline)

    def export_token(self) -> ExportedToken | None:
        """As :meth:`SignIn.export_token`. Only an OAuth client keeps its token."""
        if not isinstance(self.token_provider, ClientCredentials):
            return None
        return token_cache_of(self.token_provider).export()

    def import_token(self, token: ExportedToken) -> None:
        """As :meth:`SignIn.import_token`."""
        if isinstance(self.token_provider, ClientCredentials):
            token_cache_of(self.token_provider).import_(token)


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Settings of all connections of one query; picklable and hashable. Times are in seconds, sizes in bytes.

    ``connect_timeout`` and ``reconnect_backoff`` double with each failure in a row, up to their ``_max``. The source
    replaces a connection that was idle for ``max_idle``, because a firewall may have dropped it.
    ``canonical_bootstrap`` replaces each bootstrap server by the names of its addresses. If ``receive_buffer`` or
    ``send_buffer`` is -1, the operating system chooses the size. ``source_host`` and ``source_ports`` (the first and
    the last) are the local addresses of connections. ``rack`` is this client's rack: a task reads from a replica in it,
    for ``metadata_max_age`` before it asks the leader again, and a leader or coordinator assigns partitions near it.
    ``consumer_protocol``: the brokers must support ``kafka.group.protocol=consumer`` (KIP-848).
    Without ``tls`` nothing is encrypted; without ``sasl`` the client stays anonymous.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = ""
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
    rack: str | None = None
    metadata_max_age: float = 300.0
    consumer_protocol: bool = False
    tls: TlsLayer | None = None
    sasl: SignIn | None = None


_TRUSTSTORE_COMMANDS = {
    "JKS": "keytool -list -rfc -keystore trust.jks > trust.pem",
    "PKCS12": "openssl pkcs12 -in trust.p12 -nokeys -out trust.pem",
    "DER": "openssl x509 -inform der -in trust.der -out trust.pem",
}
_KEYSTORE_COMMANDS = {
    "JKS": "keytool -importkeystore -srckeystore client.jks -destkeystore client.p12 -deststoretype PKCS12, then"
    " openssl pkcs12 -in client.p12 -out client.pem",
    "PKCS12": "openssl pkcs12 -in client.p12 -out client.pem",
    "DER": "openssl pkey -inform der -in key.der -out client.pem, then openssl x509 -inform der -in chain.der >>"
    " client.pem",
}


def how_to_convert(store: str, store_format: str) -> str:
    """Returns a sentence with the command that converts a ``truststore`` or a ``keystore`` to PEM."""
    commands = _TRUSTSTORE_COMMANDS if store == "truststore" else _KEYSTORE_COMMANDS
    return f"Convert it to PEM with {commands[store_format]}"


def format_of(path: str) -> str | None:
    """Returns ``JKS``, ``PKCS12`` or ``DER`` for a file of this format; ``None`` for another file, and for no file."""
    try:
        with open(path, "rb") as file:
            return _format(file.read(16))
    except OSError:
        return None


def _format(head: bytes) -> str | None:
    if head.startswith(b"\xfe\xed\xfe\xed"):
        return "JKS"
    if len(head) < 2 or head[0] != 0x30:
        return None
    # A DER sequence. Its length takes one byte below 128. Otherwise this byte says how many bytes of length follow.
    length_bytes = head[1] & 0x7F if head[1] & 0x80 else 0
    # PKCS #12 begins with its version, which is 3.
    return "PKCS12" if head[2 + length_bytes :].startswith(b"\x02\x01\x03") else "DER"
