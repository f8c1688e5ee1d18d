"""TCP connections: names to addresses, socket options, and one deadline over all of it."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.settings import WireOptions
from spark_group_source.wire.waiting import Result, call_with_timeout, poll_readable, wait_ready

SHORTEST, LONGEST = 0.001, 1e6
"""Seconds that an operation on a socket gets at least, since a timeout of 0 would mean not to wait at all, and at most,
since the system counts milliseconds in 31 bits."""

_TAKEN = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


def address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def limit(sock: socket.socket, deadline: Deadline) -> None:
    """Lets the next operation on the socket wait until the deadline."""
    sock.settimeout(min(max(deadline.remaining(), SHORTEST), LONGEST))


def buffered(sock: socket.socket) -> bool:
    """Whether bytes that were decrypted already wait to be read: no wait on the descriptor tells of them."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def quiet(sock: socket.socket) -> bool:
    """Whether the peer has neither sent anything nor ended the connection. To be asked while nothing is due."""
    if buffered(sock):
        return False
    if not poll_readable([sock.fileno()], 0):
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
    addresses = _resolve(host, deadline)
    sources = _sources(options, deadline)
    for left, (family, _, _, _, found) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        where = (found[0], port, *found[2:])
        try:
            return _connect(family, where, sources, options, _part(deadline, left))
        except OSError as error:
            trouble.append(f"{where[0]}: {error}")
    raise BrokerUnavailable(f"Broker {address(host, port)} cannot be reached ({'; '.join(trouble)}).")


def canonical_names(host: str, deadline: Deadline) -> list[str]:
    """The names of a host's addresses, as the system's resolver tells them; an address itself where it has no name.

    Raises:
        BrokerUnavailable: the host has no address.
        DeadlineExceeded: it took too long.
    """

    def look_up() -> list[str]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(socket.getnameinfo(each[4], socket.NI_NUMERICSERV)[0] for each in found))

    return _in_time(look_up, "names of", host, deadline)


def _connect(
    family: int, where: Any, sources: Mapping[int, str], options: WireOptions, deadline: Deadline
) -> socket.socket:
    """A socket connected from any of the source ports; a port whose last connection has just ended may be refused."""
    if options.source_host is None and options.source_ports is None:
        return _connect_from(None, family, where, options, deadline)
    if family not in sources:
        raise OSError(f"'{options.source_host}' has no address of its kind")
    first, last = options.source_ports or (0, 0)
    for port in random.sample(range(first, last + 1), last + 1 - first):
        try:
            return _connect_from((sources[family], port), family, where, options, deadline)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            trouble = error.strerror
    raise OSError(f"from {address(sources[family], first)} to {last}: {trouble}")


def _connect_from(
    source: tuple[str, int] | None, family: int, where: Any, options: WireOptions, deadline: Deadline
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Buffer sizes must be set before the connect: they decide the TCP window scale.
        if options.receive_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
        if options.send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if source is not None:
            # A port may serve several brokers, and another connection while the last one's end is still waited out.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(source)
        sock.setblocking(False)
        failed = sock.connect_ex(where)
        if failed == errno.EINPROGRESS:
            if not wait_ready(sock.fileno(), deadline, select.POLLOUT):
                raise TimeoutError("timed out")
            failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))
    except BaseException:
        sock.close()
        raise
    return sock


def _sources(options: WireOptions, deadline: Deadline) -> dict[int, str]:
    """The local address of connections, by the kind of the peer's address; any where no host is given."""
    if options.source_host is None:
        return {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
    return {family: where[0] for family, _, _, _, where in _resolve(options.source_host, deadline)}


def _part(deadline: Deadline, left: int) -> Deadline:
    return deadline.at_most(deadline.remaining() / left)


def _resolve(host: str, deadline: Deadline) -> list[Any]:
    """All addresses of a host, without a port."""
    return _in_time(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), "addresses of", host, deadline)


def _in_time(ask: Callable[[], Result], what: str, host: str, deadline: Deadline) -> Result:
    """What the system's resolver answers, which knows no deadline."""
    try:
        return call_with_timeout(ask, deadline, f"{what} {host}")
    except TimeoutError as error:
        raise DeadlineExceeded(f"Host '{host}' was not resolved in time.") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: an empty label, or one of more than 63 characters
        raise BrokerUnavailable(f"Host '{host}' cannot be resolved: {error}.") from error
