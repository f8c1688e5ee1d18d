"""The cluster as one thread sees it: its metadata, its connections, and requests that any broker can answer."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

from spark_group_source.clock import Backoff, Deadline, monotonic
from spark_group_source.errors import (
    GRANT_GROUP,
    GROUP_AUTHORIZATION_FAILED,
    DeadlineExceeded,
    GroupError,
    RetriableError,
    describe_error_code,
)
from spark_group_source.wire import versions, waiting
from spark_group_source.wire.any_broker import MIN_BROKER_TIMEOUT, AnyBroker, Candidate
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.connections import LOOKUPS, Connections
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.metadata import (
    Broker,
    Metadata,
    Topic,
    build_request,
    check_response,
    merge,
    parse_response,
    permissions_of,
)
from spark_group_source.wire.reachability import FIRST_PATIENCE, SERVERS, Address
from spark_group_source.wire.wire_options import WireOptions

GROUP = 0
# UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_RETRIABLE_COORDINATOR_ERRORS = {-1, 7, 14, 15, 16}

KEEP_TOPICS = 600.0
"""How long the metadata of a topic is kept after the last request for the topic, in seconds."""


class Cluster:
    """Brokers, topics and connections of one thread.

    Args:
        auth_retry_timeout: how many seconds to retry a rejected authentication in a process that has never
            authenticated with these options. After a success, retries last longer: see :class:`AuthFailures`.
        identity: which cluster the brokers must belong to. All clusters of one query share it.
    """

    def __init__(
        self, options: WireOptions, auth_retry_timeout: float = 0.0, identity: ClusterIdentity | None = None
    ) -> None:
        self.options = options
        if identity is None:
            identity = ClusterIdentity()
        self.identity = identity
        self._connections = Connections(options, auth_retry_timeout, identity)
        self._any_broker = AnyBroker(options, self._candidates)
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._requested_at: dict[str, float] = {}
        self._only_told = False

    @property
    def reached(self) -> bool:
        """Whether this process has ever reached a broker of this cluster with these settings."""
        return self._connections.reached

    def metadata(
        self, topics: Collection[str] | None, deadline: Deadline, *, with_permissions: bool = False
    ) -> Metadata:
        """Requests the metadata of these topics, or of all, from any broker. Never creates a topic.

        Args:
            with_permissions: also asks what this client may do with each topic.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """

        def ask(connection: Connection, turn: Deadline) -> tuple[Connection, Metadata]:
            return connection, self.request_metadata(connection, topics, turn, with_permissions=with_permissions)

        connection, found = self._any_broker.call("MetadataRequest", ask, deadline)
        self._keep(found, topics)  # by this, a connection to a bootstrap server gets the id of its broker
        return replace(found, answered_by=connection.broker_id)

    def topics_from(
        self, connection: Connection, names: Collection[str], deadline: Deadline, *, with_permissions: bool
    ) -> dict[str, Topic]:
        """Requests the metadata of these topics over this connection, and keeps it as :meth:`metadata` does.

        Raises what :meth:`request_metadata` does.
        """
        found = self.request_metadata(connection, names, deadline, with_permissions=with_permissions)
        self._keep(found, names)
        return dict(found.topics)

    def _keep(self, found: Metadata, topics: Collection[str] | None) -> None:
        """Keeps the brokers and topics of a response to a request for these topics, or for all."""
        self._brokers = dict(found.brokers)
        self._only_told = False
        self._connections.close_retired(self._brokers.keys())
        self._connections.adopt_bootstrap(self._brokers.values())
        now = monotonic()
        if topics is not None:
            self._requested_at.update(dict.fromkeys(topics, now))
        self._keep_topics(found, now)

    def _keep_topics(self, found: Metadata, now: float) -> None:
        """Keeps topics that a query reads, until :data:`KEEP_TOPICS` after its last request for them."""
        for name, requested_at in list(self._requested_at.items()):
            if now - requested_at > KEEP_TOPICS:
                del self._requested_at[name]
        kept: dict[str, Topic] = {}
        # The lookup of a pattern lists every topic of the cluster, also those that no query reads.
        for name, topic in {**self._topics, **found.topics}.items():
            if name in self._requested_at:
                kept[name] = topic
        self._topics = kept

    def metadata_from(self, broker_id: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Requests the metadata of these topics, or of all, from one broker. Leaves the kept metadata as it is.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: the broker did not respond before the deadline.
        """
        return self.request_metadata(self.connection(broker_id, deadline), topics, deadline)

    def request_metadata(
        self,
        connection: Connection,
        topics: Collection[str] | None,
        deadline: Deadline,
        *,
        with_permissions: bool = False,
    ) -> Metadata:
        """Requests the metadata of these topics, or of all, over this connection. Leaves the kept metadata as it is.

        Args:
            with_permissions: also asks what this client may do with each topic.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: the broker did not respond before the deadline.
            OtherCluster: the broker belongs to another cluster; the connection is closed.
        """
        response = connection.call(build_request(topics, with_permissions=with_permissions), deadline)
        check_response(response)
        self._connections.check_cluster(connection, response.cluster_id)
        return parse_response(response)

    def may_read(self, topics: Collection[str], deadline: Deadline) -> dict[str, bool]:
        """Whether this client may read each of these topics. Leaves out topics whose broker reports no permissions, as
        brokers before Kafka 2.3 do.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """

        def ask(connection: Connection, turn: Deadline) -> Metadata:
            return self.request_metadata(connection, topics, turn, with_permissions=True)

        found = self._any_broker.call("MetadataRequest", ask, deadline)
        return permissions_of(found.topics)

    def broker_ids(self) -> list[int]:
        """Returns the brokers of the last metadata, connected brokers first."""
        return sorted(self._brokers, key=lambda broker_id: (not self.is_connected(broker_id), broker_id))

    def topics(self, names: Collection[str], deadline: Deadline, *, fresh: bool = False) -> dict[str, Topic]:
        """Returns the last metadata of these topics; requests it if a topic is missing or ``fresh`` is set.

        A topic with an error is requested again: others may have granted the permission or created the topic, and
        nothing notifies this client.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        self._requested_at.update(dict.fromkeys(names, monotonic()))
        if fresh or not self._are_known(names):
            self.metadata(names, deadline)
        return self._kept(names)

    def _are_known(self, names: Iterable[str]) -> bool:
        """Whether metadata without an error is kept for each of these topics."""
        for name in names:
            topic = self._topics.get(name)
            if topic is None or topic.error:
                return False
        return True

    def _kept(self, names: Iterable[str]) -> dict[str, Topic]:
        kept: dict[str, Topic] = {}
        for name in names:
            if name in self._topics:
                kept[name] = self._topics[name]
        return kept

    def invalidate_topics(self, names: Iterable[str]) -> None:
        """Makes the next call of :meth:`topics` request the metadata of these topics again."""
        for name in names:
            self._topics.pop(name, None)

    def find_coordinator(self, group_id: str, deadline: Deadline) -> Broker:
        """Returns the coordinator of a group.

        Raises:
            BrokerUnavailable, DeadlineExceeded: no coordinator was available before the deadline.
            GroupError: this client may not describe the group.
        """

        def ask(connection: Connection, turn: Deadline) -> Any:
            request = FindCoordinatorRequest(key=group_id, key_type=GROUP, coordinator_keys=[group_id])
            return connection.call(request, turn)

        backoff = Backoff(self.options.retry_backoff, self.options.retry_backoff_max)
        while True:
            response = self._any_broker.call("FindCoordinatorRequest", ask, deadline)
            coordinator = response  # of versions before 4, which look up one group
            if response.coordinators:
                coordinator = response.coordinators[0]
            error_code = coordinator.error_code
            if not error_code:
                broker = Broker(coordinator.node_id, coordinator.host, coordinator.port)
                self._brokers[broker.id] = broker
                self._connections.adopt_bootstrap(self._brokers.values())
                return broker
            if error_code not in _RETRIABLE_COORDINATOR_ERRORS:
                raise _coordinator_error(group_id, error_code)
            seconds = backoff.next()
            # If the deadline cut another request short, its error would explain less than this response.
            if deadline.remaining() <= seconds + MIN_BROKER_TIMEOUT:
                raise DeadlineExceeded(
                    f"Group '{group_id}' has no coordinator yet: {describe_error_code(error_code)}.",
                    "Check the brokers' logs, and that the topic __consumer_offsets has leaders.",
                )
            waiting.sleep(seconds, deadline)

    def kept(self, names: Iterable[str]) -> Metadata:
        """Returns all brokers, and the topics among ``names``, that are known without a lookup."""
        return Metadata(self._brokers, self._kept(names))

    def tell(self, known: Metadata) -> None:
        """Adds brokers and leaders that another client has found (:mod:`.known_leaders`). The results of this client's
        own lookups take precedence, except for leaders of an earlier epoch.

        If this client has looked up nothing itself and cannot connect to one of the brokers, it forgets what it was
        told: on this host an address may lead elsewhere, and the bootstrap servers know the right addresses.
        """
        if not known.topics:
            return
        self._only_told |= not self._brokers
        for broker in known.brokers.values():
            self.add_broker(broker)
        self._requested_at.update(dict.fromkeys(known.topics, monotonic()))
        for name, topic in known.topics.items():
            kept = self._topics.get(name, topic)
            if kept.id == topic.id:  # otherwise a lookup has to tell which of the two topics exists now
                self._topics |= merge([{name: kept}, {name: topic}])

    def add_broker(self, broker: Broker) -> None:
        """Adds a broker that another client of the query has found. A broker that is known already keeps its
        address."""
        self._brokers.setdefault(broker.id, broker)

    def connection(self, broker_id: int, deadline: Deadline, purpose: str = LOOKUPS) -> Connection:
        """Returns the connection to a broker for one purpose. Requests of different purposes never wait for each other.

        Raises:
            BrokerUnavailable: the broker is unknown or cannot be reached.
            AuthenticationFailed, DeadlineExceeded, ProtocolError: as :meth:`Connection.open`.
        """
        try:
            return self._connections.to_broker(broker_id, self._brokers.get(broker_id), purpose, deadline)
        except RetriableError:
            if self._only_told:
                self._brokers.clear()
                self._topics.clear()
            raise

    def failures(self, broker_id: int) -> int:
        """Returns how many connections of this process to this broker have failed in a row."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            return 0
        return SERVERS.failures((broker.host, broker.port))

    def patience(self, broker_id: int) -> float:
        """Returns how many seconds a new connection to this broker may take while requests to others wait for it."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            return FIRST_PATIENCE
        return SERVERS.patience((broker.host, broker.port))

    def is_connected(self, broker_id: int, purpose: str = LOOKUPS) -> bool:
        """Whether a connection to this broker is open, as far as this host knows."""
        connection = self._connections.get(broker_id, purpose)
        if connection is None:
            return False
        return connection.in_flight > 0 or connection.is_reusable()

    def throttle_remaining(self, broker_id: int, purpose: str = LOOKUPS) -> float:
        """Returns the seconds until this broker reads again from its connection for this purpose."""
        connection = self._connections.get(broker_id, purpose)
        if connection is None:
            return 0.0
        return connection.throttle_remaining

    def supports(self, broker_id: int, api_key: int, version: int, purpose: str = LOOKUPS) -> bool:
        """Whether this broker supports this version of a request; false without a connection for this purpose."""
        connection = self._connections.get(broker_id, purpose)
        if connection is None:
            return False
        return versions.supports(connection.supported, api_key, version)

    def lacks(self) -> list[str]:
        """The features that one of the connected brokers lacks, for the log."""
        return self._connections.lacks()

    def release_buffers(self) -> None:
        """Frees the receive buffers of all connections; the connections stay open."""
        self._connections.release_buffers()

    def close(self) -> None:
        """Closes all connections. The cluster may be used again."""
        self._connections.close()

    def forget(self) -> None:
        """Closes all connections and drops all metadata, because both belong to another cluster."""
        self.close()
        self._brokers.clear()
        self._topics.clear()

    def _candidates(self) -> list[Candidate]:
        """Returns the servers to ask, in the order of the tries.

        Connected brokers come first, then known brokers, then bootstrap servers. Within each kind, those with the
        fewest failures come first. The second candidate is always a bootstrap server, even if it is a known broker: if
        all known brokers have moved and their former addresses are silent, the lookup still reaches a server that knows
        the new addresses (the aim of KIP-899).
        """
        known = [self._known(broker_id) for broker_id in sorted(self._brokers, key=self._preference)]
        candidates = known + self._unknown_servers({candidate.address for candidate in known})
        if not known:
            return candidates
        second = self._next_bootstrap(candidates[1:])
        if second is not None:
            candidates.remove(second)
            candidates.insert(1, second)
        return candidates

    def _unknown_servers(self, known: Collection[Address]) -> list[Candidate]:
        """The bootstrap servers that are no known brokers, those with the fewest failures first."""
        servers = []
        for host, port in self.options.bootstrap_servers:
            if (host, port) not in known:
                servers.append(Candidate((host, port), partial(self._connections.to_bootstrap, host, port)))
        servers.sort(key=Candidate.failures)  # of equals the first one that the option names
        return servers

    def _next_bootstrap(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """The first bootstrap server with the fewest failures; ``None`` without bootstrap servers."""
        bootstrap = [each for each in candidates if each.address in self.options.bootstrap_servers]
        return min(bootstrap, key=Candidate.failures, default=None)

    def _known(self, broker_id: int) -> Candidate:
        broker = self._brokers[broker_id]
        return Candidate((broker.host, broker.port), partial(self.connection, broker_id))

    def _preference(self, broker_id: int) -> tuple[bool, int, float]:
        return not self.is_connected(broker_id), self.failures(broker_id), random.random()


def _coordinator_error(group_id: str, error_code: int) -> GroupError:
    action = "Check 'kafka.group.id' and the brokers' logs."
    if error_code == GROUP_AUTHORIZATION_FAILED:
        action = GRANT_GROUP
    happened = f"The lookup of the coordinator of group '{group_id}' failed: {describe_error_code(error_code)}."
    return GroupError(happened, action, error_code=error_code)
