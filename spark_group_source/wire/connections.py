"""The connections to the brokers of one cluster, for one thread."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from spark_group_source.clock import Deadline, monotonic
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    GroupSourceError,
    OtherCluster,
    RetriableError,
)
from spark_group_source.wire import resolver, versions
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.metadata import Broker, advertiser
from spark_group_source.wire.reachability import EAGER, SERVERS, Address
from spark_group_source.wire.reconnect_backoff import ReconnectBackoff
from spark_group_source.wire.rejections import AuthFailures
from spark_group_source.wire.wire_options import WireOptions

LOOKUPS = ""
"""The purpose of the connection for a thread's commits and all its lookups, including those of committed offsets."""


class Connections:
    """Keeps a connection for each broker and purpose, and one to a bootstrap server; reopens broken connections.

    Args:
        auth_retry_timeout, identity: as for :class:`spark_group_source.wire.cluster.Cluster`.
    """

    def __init__(self, options: WireOptions, auth_retry_timeout: float, identity: ClusterIdentity) -> None:
        self._options = options
        self._identity = identity
        self._rejections = AuthFailures(options, auth_retry_timeout)
        self._reconnect_backoff = ReconnectBackoff(options)
        self._by_purpose: dict[tuple[int, str], Connection] = {}
        self._bootstrap: Connection | None = None

    @property
    def reached(self) -> bool:
        """Whether this process has ever reached a broker of this cluster with these settings."""
        return self._rejections.reached

    def get(self, broker_id: int, purpose: str) -> Connection | None:
        """Returns the connection to a broker unless this client has closed it. The broker may have closed it."""
        connection = self._by_purpose.get((broker_id, purpose))
        if connection is None or connection.closed:
            return None
        return connection

    def to_broker(self, broker_id: int, broker: Broker | None, purpose: str, deadline: Deadline) -> Connection:
        """Returns the open connection to a broker, or opens one. ``broker`` is ``None`` if metadata does not name it.

        Raises:
            BrokerUnavailable: no connection is open, and the broker is unknown or cannot be reached.
            AuthenticationFailed, DeadlineExceeded, ProtocolError: as :meth:`Connection.open`.
        """
        kept = self._by_purpose.get((broker_id, purpose))
        if kept is not None:
            if not _has_moved(kept, broker) and self._is_reusable(kept):
                return kept
            kept.close()
        if broker is None:
            raise BrokerUnavailable(f"Broker {broker_id} is not in the cluster's metadata.")
        opened = self._open(broker.host, broker.port, deadline, broker_id)
        self._by_purpose[broker_id, purpose] = opened
        return opened

    def to_bootstrap(self, host: str, port: int, deadline: Deadline) -> Connection:
        """Returns the open connection to a bootstrap server, or opens one. Raises the same errors as
        :meth:`to_broker`."""
        names = [host]
        if self._options.canonical_bootstrap:
            names = resolver.canonical_names(host, deadline)
        kept = self._bootstrap
        if kept is not None:
            is_requested = kept.host in names and kept.port == port
            if is_requested and self._is_reusable(kept):
                return kept
            kept.close()
        # Callers retry until a broker responds, so each name gets its turn.
        name = min(names, key=lambda name: (SERVERS.failures((name, port)), random.random()))
        try:
            self._bootstrap = self._open(name, port, deadline)
        except RetriableError:
            if name != host:
                SERVERS.record_failure((host, port))  # the option's name, by which servers are sorted
            raise
        SERVERS.record_success((host, port))
        return self._bootstrap

    def adopt_bootstrap(self, brokers: Iterable[Broker]) -> None:
        """Uses the connection to a bootstrap server for the broker behind it, so that the broker needs no second
        connection.

        Only the broker that alone advertises the server's address may be behind it: no broker advertises the address of
        a load balancer, and an address that several brokers advertise may lead to any of them. ``brokers`` may come
        from another broker, so the broker at the other end must agree: it was asked when the connection was opened.

        Args:
            brokers: the brokers that this cluster knows now.
        """
        bootstrap = self._bootstrap
        if bootstrap is None or bootstrap.closed or bootstrap.advertised_by is None:
            return
        broker_id = bootstrap.advertised_by
        if advertiser(brokers, (bootstrap.host, bootstrap.port)) != broker_id:
            return
        if self.get(broker_id, LOOKUPS) is not None:
            return
        bootstrap.name_broker(broker_id)
        self._by_purpose[broker_id, LOOKUPS] = bootstrap
        self._bootstrap = None

    def check_cluster(self, connection: Connection, reported: str | None) -> None:
        """Checks the cluster id that the broker at the other end of a connection has reported, or ``None`` without one.

        Raises:
            OtherCluster: the broker belongs to another cluster; the connection is closed.
        """
        try:
            self._identity.check(reported, str(connection))
        except OtherCluster:
            connection.reject()
            raise

    def close_retired(self, known: Collection[int]) -> None:
        """Closes the connections that brokers outside ``known`` have ended: no later request would notice the end."""
        for (broker_id, purpose), connection in list(self._by_purpose.items()):
            if broker_id in known or connection.in_flight or connection.is_reusable():
                continue
            connection.close()
            del self._by_purpose[broker_id, purpose]

    def lacks(self) -> list[str]:
        """The features that one of the connected brokers lacks, for the log."""
        lacking: dict[str, None] = {}
        for kept in self._all():
            lacking |= dict.fromkeys(versions.lacks(kept.supported))
        return list(lacking)

    def release_buffers(self) -> None:
        """Frees the receive buffers of all connections; the connections stay open."""
        for connection in self._by_purpose.values():
            connection.release_buffers()

    def close(self) -> None:
        """Closes all connections. The object may be used again."""
        for connection in self._by_purpose.values():
            connection.close()
        self._by_purpose.clear()
        if self._bootstrap is not None:
            self._bootstrap.close()
            self._bootstrap = None

    def _open(self, host: str, port: int, deadline: Deadline, broker_id: int | None = None) -> Connection:
        """Opens a connection, or fails while the backoff of this address lasts."""
        address = host, port
        self._reconnect_backoff.check(address)
        try:
            limit = deadline.at_most(self._reconnect_backoff.connect_timeout(address))
            eager = EAGER.failures(address) == 0
            opened = Connection.open(host, port, self._options, limit, broker_id, eager=eager)
            self._ask_for_cluster(opened, limit)
        except AuthenticationFailed as error:
            rejection = self._rejected(address, error)
            if rejection is error:
                raise
            raise rejection from error
        except RetriableError as error:
            failure = error
            if broker_id is not None:
                failure = _with_hint(error)
            self._reconnect_backoff.record_failure(address, failure)
            SERVERS.record_failure(address)
            if failure is error:
                raise
            raise failure from error
        self._reconnect_backoff.record_success(address)
        SERVERS.record_success(address)
        self._rejections.record_success()
        return opened

    def _ask_for_cluster(self, opened: Connection, deadline: Deadline) -> None:
        """Checks a new connection before any other request is sent over it: a commit must not reach another cluster.

        Raises:
            OtherCluster: as :meth:`check_cluster`.
        """
        try:
            self.check_cluster(opened, opened.request_cluster_id(deadline))
        except BaseException:
            opened.close()
            raise

    def _rejected(self, address: Address, error: AuthenticationFailed) -> GroupSourceError:
        """The error for a rejection by this broker. It is retriable unless these settings are wrong."""
        try:
            retriable = self._rejections.as_retriable(error, self._last_response_at())
        except AuthenticationFailed as final:
            self._reconnect_backoff.record_rejection(address, final)
            return final
        self._reconnect_backoff.record_failure(address, retriable)
        return retriable

    def _last_response_at(self) -> float | None:
        last: float | None = None
        for connection in self._all():
            at = connection.responded_at
            if at is not None and (last is None or at > last):
                last = at
        return last

    def _all(self) -> list[Connection]:
        connections = list(self._by_purpose.values())
        if self._bootstrap is not None:
            connections.append(self._bootstrap)
        return connections

    def _is_reusable(self, kept: Connection) -> bool:
        return kept.is_reusable() and monotonic() - kept.used_at <= self._options.max_idle


def _has_moved(connection: Connection, broker: Broker | None) -> bool:
    """Whether metadata names another address for the broker of this connection."""
    if broker is None:
        return False
    return (broker.host, broker.port) != (connection.host, connection.port)


_ADVERTISED = "The brokers advertise this address (advertised.listeners): this machine must be able to reach it."


def _with_hint(error: RetriableError) -> RetriableError:
    """The failure of a connection to an address that no option names, with a hint: users look for it in their own
    settings."""
    if isinstance(error, OtherCluster):
        return error
    action = _ADVERTISED
    if error.action:
        action = f"{error.action} {_ADVERTISED}"
    return type(error)(error.happened, action)
