"""What TCP and TLS sockets have in common: timeouts, unread bytes, and names for messages."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, TypeGuard

from spark_group_source.clock import Deadline
from spark_group_source.text import printable
from spark_group_source.wire.reachability import Address
from spark_group_source.wire.waiting import poll_readable

if TYPE_CHECKING:
    import ssl

MIN_TIMEOUT, MAX_TIMEOUT = 0.001, 1e6
"""Limits of a socket's timeout in seconds. With 0 a socket would not wait at all, and the system counts milliseconds in
31 bits."""


def address(host: str, port: int) -> str:
    """Returns ``host:port`` for messages, with brackets around an IPv6 address. A broker may advertise any host."""
    shown = printable(host)
    return f"[{shown}]:{port}" if ":" in host else f"{shown}:{port}"


def set_timeout(sock: socket.socket, deadline: Deadline) -> None:
    """Makes the next operation on the socket time out at the deadline."""
    sock.settimeout(min(max(deadline.remaining(), MIN_TIMEOUT), MAX_TIMEOUT))


def reset_on_close(sock: socket.socket) -> None:
    """Makes ``close`` reset the connection and drop the bytes that are not sent yet."""
    with contextlib.suppress(OSError):  # of a connection that is broken
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def uses_tls(sock: socket.socket) -> TypeGuard[ssl.SSLSocket]:
    """Whether TLS wraps the socket. A process without TLS does not import ``ssl``, which saves 20 ms at its start."""
    return hasattr(sock, "pending")


def not_ready_errors(sock: socket.socket) -> tuple[type[OSError], ...]:
    """The errors that a socket with a timeout of 0 raises while it has no bytes."""
    if not uses_tls(sock):
        return (BlockingIOError,)
    import ssl

    return ssl.SSLWantReadError, BlockingIOError


def has_decrypted_bytes(sock: socket.socket) -> bool:
    """Whether TLS has decrypted bytes that nothing has read yet. A wait on the descriptor does not see them."""
    return uses_tls(sock) and sock.pending() > 0


def is_idle(sock: socket.socket) -> bool:
    """Whether the broker has neither sent bytes nor closed the connection. Call this while no response is due."""
    if has_decrypted_bytes(sock):
        return False
    if not poll_readable([sock.fileno()], 0):
        return True
    if not uses_tls(sock):
        return False
    # The bytes may belong to TLS itself: a session ticket, for example.
    sock.settimeout(0)
    try:
        sock.recv(1)
    except not_ready_errors(sock):
        return True
    except OSError:
        return False
    return False


def remote_address(sock: socket.socket) -> Address | None:
    """Returns the IP address and port at the other end, or ``None`` if the connection has ended."""
    try:
        ip, port = sock.getpeername()[:2]
    except OSError:
        return None
    return ip, port
