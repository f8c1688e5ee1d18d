"""What a connection needs for TLS and for signing in: two small protocols, and the token that a driver gives its tasks.

Implementations are settings: picklable, hashable, and equal if their values are, because they travel with the tasks as
a part of ``WireOptions``. They import slow modules only when a connection needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from socket import socket
from typing import Any, Protocol

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.text import Secret

Call = Callable[[Any], Any]
"""Sends a request, a kafka-python message, and returns the decoded response."""


class TlsLayer(Protocol):
    """Encrypts connections."""

    def handshake(self, sock: socket, host: str, broker: str, deadline: Deadline) -> socket:
        """Returns the socket with TLS over it, which owns ``sock``; closes ``sock`` if the handshake fails.

        Args:
            host: the host that the broker's certificate must name.
            broker: names the broker in errors.

        Raises:
            AuthenticationFailed: one side rejects the other's certificate, or they have no TLS version in common.
            BrokerUnavailable: the connection broke.
            DeadlineExceeded: the handshake took too long.
            OptionError: a file of certificates or keys cannot be read.
        """

    def session_error(self, broker: str, error: OSError, *, responded: bool) -> GroupSourceError | None:
        """Converts an error of TLS after the handshake. Returns ``None`` for an error of the connection below TLS.

        Args:
            broker: names the broker in errors.
            responded: the broker has answered a request on this connection.
        """


@dataclass(frozen=True, slots=True)
class ExportedToken:
    """A token that the driver gives its tasks. Both times are in seconds since 1970."""

    text: Secret
    usable_until: float
    refresh_at: float


class SignIn(Protocol):
    """Authenticates this client on each new connection, by an exchange of SASL messages."""

    @property
    def username(self) -> str | None:
        """The user's name, or ``None`` if only the brokers know it."""

    def authenticate(self, host: str, broker: str, call: Call, deadline: Deadline) -> float | None:
        """Authenticates this client. Returns how many seconds the connection may be used, or ``None`` without a limit.

        Args:
            host: the broker's host, for the mechanisms that use it.
            broker: names the broker in errors.

        Raises:
            AuthenticationFailed: the broker rejected the mechanism or the credentials.
            BrokerUnavailable: no credentials are available now, or the broker has too many connections.
            DeadlineExceeded: the credentials took too long.
        """

    def export_token(self) -> ExportedToken | None:
        """Returns the token that this process keeps, or ``None`` without a valid one."""

    def import_token(self, token: ExportedToken) -> None:
        """Keeps the token of another process, unless this process has one that is valid for longer."""
