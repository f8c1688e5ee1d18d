"""TCP connections to the first of a host's addresses that accepts one, before a deadline."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.wire.reachability import ADDRESSES, Address
from spark_group_source.wire.resolver import resolve
from spark_group_source.wire.sockets import address
from spark_group_source.wire.waiting import wait_any
from spark_group_source.wire.wire_options import WireOptions

KEEPALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPALIVE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds without traffic before the first probe (two names of one option), seconds between two probes, and how many
lost probes end the connection. With a system's default of two hours, a request could wait long for a host that is gone.
All probes fit in :data:`USER_TIMEOUT`: on Linux, the first lost probe ends a connection that was idle for longer."""

USER_TIMEOUT = {"TCP_USER_TIMEOUT": 10_000}
"""Milliseconds until the system ends a connection whose other end acknowledges nothing (Linux only, RFC 5482). A load
balancer or a firewall may drop an idle connection silently, and the next request would wait for its whole timeout. A
slow broker still acknowledges."""

_PORT_IN_USE = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


NEXT_ADDRESS = 0.25
"""How long to wait for one address of a host before the next is tried as well, in seconds (RFC 8305, section 5)."""


def connect(host: str, port: int, options: WireOptions, deadline: Deadline) -> socket.socket:
    """Connects to one of the host's addresses and returns the socket.

    Addresses with recent failures come last. An address that drops packets (often IPv6 without a route) hardly delays
    the others: see :class:`_Race`.

    Raises:
        BrokerUnavailable: the port is invalid, or the host has no address that accepts connections.
        DeadlineExceeded: the host's name was not resolved in time.
    """
    if not 0 < port < 2**16:
        raise BrokerUnavailable(
            f"Broker {address(host, port)} cannot be reached: {port} is not a port.",
            "Check the brokers' advertised.listeners.",
        )
    remotes = [(family, (resolved[0], port, *resolved[2:])) for family, _, _, _, resolved in resolve(host, deadline)]
    remotes.sort(key=lambda each: ADDRESSES.failures(each[1][:2]))
    race = _Race(_local_hosts(options, deadline), options, deadline)
    connected = race.run(remotes)
    if connected is None:
        raise BrokerUnavailable(f"Broker {address(host, port)} cannot be reached ({'; '.join(race.errors)}).")
    return connected


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One connection that is being established."""

    sock: socket.socket
    address: Address
    began_at: float
    deadline: Deadline


class _Race:
    """Connects to several addresses. The first one that accepts wins ("happy eyeballs", RFC 8305).

    The next address is tried as soon as the one before it has failed, or has been silent for :data:`NEXT_ADDRESS`.
    ``errors`` are the errors of the addresses that failed.
    """

    def __init__(self, local_hosts: Mapping[int, str], options: WireOptions, deadline: Deadline) -> None:
        self.errors: list[str] = []
        self._local_hosts = local_hosts
        self._options = options
        self._deadline = deadline
        self._pending: dict[int, _Attempt] = {}

    def run(self, remotes: Sequence[tuple[int, Any]]) -> socket.socket | None:
        """Returns the first connected socket, or ``None`` if no address (with its family) accepts a connection."""
        left = deque(remotes)
        try:
            while left or self._pending:
                if left:
                    self._begin(*left.popleft())
                    if self._deadline.expired():
                        left.clear()  # They have not failed: the next connection tries them first.
                winner = self._wait(self._deadline.at_most(NEXT_ADDRESS) if left else self._deadline)
                if winner is not None:
                    return winner
        finally:
            for attempt in self._pending.values():
                attempt.sock.close()
        return None

    def _begin(self, family: int, remote: Any) -> None:
        to = remote[:2]
        try:
            sock = _begin_connecting(family, remote, self._local_hosts, self._options)
        except OSError as error:
            self._record_failure(to, str(error))
            return
        patience = ADDRESSES.patience(to)  # then the caller tries another server, and this one later
        self._pending[sock.fileno()] = _Attempt(sock, to, self._deadline.clock(), self._deadline.at_most(patience))

    def _wait(self, until: Deadline) -> socket.socket | None:
        """Waits until an attempt succeeds or all have failed, but not longer than ``until``."""
        while self._pending:
            patience = min(attempt.deadline.remaining() for attempt in self._pending.values())
            for descriptor in wait_any(self._pending, until.at_most(patience), select.POLLOUT):
                attempt = self._pending.pop(descriptor)
                code = attempt.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    self._won(attempt)
                    return attempt.sock
                self._give_up(attempt, str(OSError(code, os.strerror(code))))
            for descriptor, attempt in list(self._pending.items()):
                if attempt.deadline.expired():
                    del self._pending[descriptor]
                    self._give_up(attempt, "timed out")
            if until.expired():
                break
        return None

    def _won(self, winner: _Attempt) -> None:
        """Lets the next connection try the winner first: the addresses tried before it are slow or dead."""
        for attempt in self._pending.values():
            if attempt.began_at < winner.began_at:
                ADDRESSES.record_failure(attempt.address)

    def _give_up(self, attempt: _Attempt, error: str) -> None:
        attempt.sock.close()
        self._record_failure(attempt.address, error)

    def _record_failure(self, to: Address, error: str) -> None:
        ADDRESSES.record_failure(to)
        self.errors.append(f"{to[0]}: {error}")


def _begin_connecting(family: int, remote: Any, local_hosts: Mapping[int, str], options: WireOptions) -> socket.socket:
    """Begins to connect from any of the source ports. The system may reject a port whose last connection just ended."""
    if options.source_host is None and options.source_ports is None:
        return _begin_connecting_from(None, family, remote, options)
    if family not in local_hosts:
        kind = "IPv6" if family == socket.AF_INET6 else "IPv4"
        raise OSError(f"'kafka.source.host' is '{options.source_host}', which has no {kind} address")
    first, last = options.source_ports or (0, 0)
    for port in random.sample(range(first, last + 1), last + 1 - first):
        try:
            return _begin_connecting_from((local_hosts[family], port), family, remote, options)
        except OSError as error:
            if error.errno not in _PORT_IN_USE:
                raise
            reason = error.strerror
    raise OSError(f"from {address(local_hosts[family], first)} to {last}: {reason}")


def _begin_connecting_from(
    local: tuple[str, int] | None, family: int, remote: Any, options: WireOptions
) -> socket.socket:
    """Returns a socket without waiting for the connection: it is writable once it is connected or has failed."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Buffer sizes must be set before the connect: they decide the TCP window scale.
        if options.receive_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
        if options.send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (KEEPALIVE | USER_TIMEOUT).items():
            if hasattr(socket, name):  # each system has some of them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if local is not None:
            # A port may serve several brokers, and again while its last connection is in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(local)
        sock.setblocking(False)
        code = sock.connect_ex(remote)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _local_hosts(options: WireOptions, deadline: Deadline) -> dict[int, str]:
    """Returns the local address of connections by address family; any address if the options give no source host."""
    if options.source_host is None:
        return {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
    return {family: local[0] for family, _, _, _, local in resolve(options.source_host, deadline)}
