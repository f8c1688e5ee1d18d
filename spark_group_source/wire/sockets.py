"""TCP connections: names to addresses, socket options, and one deadline over all of it."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.settings import WireOptions
from spark_group_source.wire.waiting import bounded, readable

SHORTEST = 0.001
"""Seconds that an operation on a socket gets at least: a timeout of 0 would mean not to wait at all."""


def address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def limit(sock: socket.socket, deadline: Deadline) -> None:
    """Lets the next operation on the socket wait until the deadline."""
    sock.settimeout(max(deadline.remaining(), SHORTEST))


def buffered(sock: socket.socket) -> bool:
    """Whether bytes that were decrypted already wait to be read: no wait on the descriptor tells of them."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def quiet(sock: socket.socket) -> bool:
    """Whether the peer has neither sent anything nor ended the connection. To be asked while nothing is due."""
    if buffered(sock):
        return False
    if not readable([sock.fileno()], 0):
        return True
    if not isinstance(sock, ssl.SSLSocket):
        return False
    # What came may be TLS's own, a session ticket for example.
    sock.settimeout(0)
    try:
        sock.recv(1)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    return False


def connect(host: str, port: int, options: WireOptions, deadline: Deadline) -> socket.socket:
    """A connected socket. The addresses of the host are tried one by one, each with a fair part of the time left, so
    that one that drops packets (often an IPv6 address without a route) leaves time for the others.

    Raises:
        BrokerUnavailable: the host has no address, or none that accepts connections.
        DeadlineExceeded: the host's name was not resolved in time.
    """
    trouble: list[str] = []
    addresses = _resolve(host, port, deadline)
    for left, (family, kind, protocol, _, where) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            return _connect(socket.socket(family, kind, protocol), where, options, _part(deadline, left))
        except OSError as error:
            trouble.append(f"{where[0]}: {error}")
    raise BrokerUnavailable(f"Broker {address(host, port)} cannot be reached ({'; '.join(trouble)}).")


def _connect(sock: socket.socket, where: Any, options: WireOptions, deadline: Deadline) -> socket.socket:
    try:
        # Buffer sizes must be set before the connect: they decide the TCP window scale.
        if options.receive_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
        if options.send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limit(sock, deadline)
        sock.connect(where)
    except BaseException:
        sock.close()
        raise
    return sock


def _part(deadline: Deadline, left: int) -> Deadline:
    return deadline.at_most(deadline.remaining() / left)


def _resolve(host: str, port: int, deadline: Deadline) -> list[Any]:
    """All addresses of a host. The system's resolver knows no deadline."""
    try:
        return bounded(lambda: list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)), deadline)
    except TimeoutError as error:
        raise DeadlineExceeded(f"Host '{host}' was not resolved in time.") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: an empty label, or one of more than 63 characters
        raise BrokerUnavailable(f"Host '{host}' cannot be resolved: {error}.") from error
