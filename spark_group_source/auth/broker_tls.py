"""TLS of connections to brokers."""

from __future__ import annotations

from dataclasses import dataclass
from socket import socket

from spark_group_source.auth.tls import Tls
from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """Encrypts connections to brokers, by these settings."""

    settings: Tls

    def handshake(self, sock: socket, host: str, broker: str, deadline: Deadline) -> socket:
        """As :meth:`TlsLayer.handshake`."""
        from spark_group_source.auth import tls_session  # imports ssl, which takes 20 ms

        return tls_session.handshake(sock, host, broker, self.settings, deadline)

    def session_error(self, broker: str, error: OSError, *, responded: bool) -> GroupSourceError | None:
        """As :meth:`TlsLayer.session_error`."""
        from spark_group_source.auth import tls_session

        return tls_session.session_error(broker, error, responded=responded)
