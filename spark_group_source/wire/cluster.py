"""The cluster as one thread sees it: its metadata, its connections, and requests that any broker answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

from spark_group_source.clock import Backoff, Deadline, monotonic
from spark_group_source.errors import (
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    OtherCluster,
    ProtocolError,
    describe_error_code,
)
from spark_group_source.wire import versions, waiting
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.connections import Connections
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.metadata import Broker, Metadata, Topic, build_request, check_response, parse_response
from spark_group_source.wire.reachability import FIRST_PATIENCE, SERVERS, Address
from spark_group_source.wire.waiting import Result
from spark_group_source.wire.wire_options import WireOptions

READ, DESCRIBE = 3, 8
"""Operations on a topic: org.apache.kafka.common.acl.AclOperation. READ implies DESCRIBE."""

GROUP = 0
MIN_BROKER_TIMEOUT = 1.0
"""Minimum seconds that each broker gets for a request that any broker can answer, if that leaves others as much."""

# UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_RETRIABLE_COORDINATOR_ERRORS = {-1, 7, 14, 15, 16}

KEEP_TOPICS = 600.0
"""How many seconds the metadata of a topic is kept after the last request for the topic."""

_UNREACHABLE = "Check 'kafka.bootstrap.servers', and that this machine can reach the addresses that brokers advertise."


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A server for a request that any broker can answer."""

    address: Address
    connect: Callable[[Deadline], Connection]

    def failures(self) -> int:
        return SERVERS.failures(self.address)


class Cluster:
    """Brokers, topics and connections of one thread.

    Args:
        auth_retry_timeout: seconds for which a rejected authentication is retried in a process that never authenticated
            with these options. After a success it is retried for longer: see :class:`AuthFailures`.
        identity: which cluster the brokers must belong to; those of one query share it.
    """

    def __init__(
        self, options: WireOptions, auth_retry_timeout: float = 0.0, identity: ClusterIdentity | None = None
    ) -> None:
        self.options = options
        self.identity = identity or ClusterIdentity()
        self._connections = Connections(options, auth_retry_timeout, self.identity)
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._requested_at: dict[str, float] = {}

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Requests the metadata of these topics, or of all, from any broker. Never creates a topic.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        found = self._call_any_broker(
            "MetadataRequest", lambda connection, turn: self.request_metadata(connection, topics, turn), deadline
        )
        self._brokers = dict(found.brokers)
        self._connections.close_retired(self._brokers.keys())
        now = monotonic()
        self._requested_at.update(dict.fromkeys(topics or (), now))
        self._requested_at = {name: at for name, at in self._requested_at.items() if now - at <= KEEP_TOPICS}
        # The lookup of a pattern lists every topic of the cluster. Only topics that a query reads are kept.
        self._topics = {n: topic for n, topic in {**self._topics, **found.topics}.items() if n in self._requested_at}
        return found

    def metadata_from(self, broker_id: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Requests the metadata of these topics, or of all, from one broker. Leaves the kept metadata as it is.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: the broker did not respond before the deadline.
        """
        return self.request_metadata(self.connection(broker_id, deadline), topics, deadline)

    def request_metadata(self, connection: Connection, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Requests the metadata of these topics, or of all, over this connection. Leaves the kept metadata as it is.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: the broker did not respond before the deadline.
            OtherCluster: it belongs to another cluster; the connection is closed.
        """
        return parse_response(self._send_metadata(connection, build_request(topics), deadline))

    def _send_metadata(self, connection: Connection, request: Any, deadline: Deadline) -> Any:
        response = connection.call(request, deadline)
        check_response(response)
        try:
            self.identity.check(response.cluster_id, str(connection))
        except OtherCluster:
            connection.reject()
            raise
        return response

    def may_read(self, topics: Collection[str], deadline: Deadline) -> dict[str, bool]:
        """Whether this client may read each of these topics; brokers before Kafka 2.3 say it of no topic, or deny it.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """

        def ask(connection: Connection, turn: Deadline) -> Any:
            return self._send_metadata(connection, build_request(topics, with_permissions=True), turn)

        response = self._call_any_broker("MetadataRequest", ask, deadline)
        self.invalidate_topics(topics)  # the kept metadata may say that a topic may not be described
        permitted: dict[str, bool] = {}
        for topic in response.topics:
            if topic.error_code == TOPIC_AUTHORIZATION_FAILED:
                permitted[topic.name] = False
            elif not topic.error_code and DESCRIBE in (topic.authorized_operations or ()):
                permitted[topic.name] = READ in topic.authorized_operations
        return permitted

    def broker_ids(self) -> list[int]:
        """Returns the brokers of the last metadata, connected brokers first."""
        return sorted(self._brokers, key=lambda broker_id: (not self.is_connected(broker_id), broker_id))

    def topics(self, names: Collection[str], deadline: Deadline, *, fresh: bool = False) -> dict[str, Topic]:
        """Returns the last metadata of these topics; requests it if a topic is missing or ``fresh`` is set.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        self._requested_at.update(dict.fromkeys(names, monotonic()))
        if fresh or any(name not in self._topics for name in names):
            self.metadata(names, deadline)
        return {name: self._topics[name] for name in names if name in self._topics}

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

        backoff = self._backoff()
        while True:
            response = self._call_any_broker("FindCoordinatorRequest", ask, deadline)
            coordinator = response.coordinators[0] if response.coordinators else response
            error_code = coordinator.error_code
            if not error_code:
                broker = Broker(coordinator.node_id, coordinator.host, coordinator.port)
                self._brokers[broker.id] = broker
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

    def connection(self, broker_id: int, deadline: Deadline, purpose: str = "") -> Connection:
        """Returns the connection to a broker for one purpose. Requests of different purposes never wait for each other.

        Raises:
            BrokerUnavailable: the broker is unknown or cannot be reached.
            AuthenticationFailed, DeadlineExceeded, ProtocolError: as :meth:`Connection.open`.
        """
        return self._connections.to_broker(broker_id, self._brokers.get(broker_id), purpose, deadline)

    def failures(self, broker_id: int) -> int:
        """Returns how many connections to this broker have failed in a row, of all connections of this process."""
        broker = self._brokers.get(broker_id)
        return 0 if broker is None else SERVERS.failures((broker.host, broker.port))

    def patience(self, broker_id: int) -> float:
        """Returns how many seconds a new connection to this broker may take while requests to others wait for it."""
        broker = self._brokers.get(broker_id)
        return FIRST_PATIENCE if broker is None else SERVERS.patience((broker.host, broker.port))

    def is_connected(self, broker_id: int, purpose: str = "") -> bool:
        """Whether a connection to this broker is open, as far as this host knows."""
        connection = self._connections.get(broker_id, purpose)
        return connection is not None and (connection.in_flight > 0 or connection.is_reusable())

    def throttle_remaining(self, broker_id: int, purpose: str = "") -> float:
        """Returns the seconds until this broker reads again from its connection for this purpose."""
        connection = self._connections.get(broker_id, purpose)
        return 0.0 if connection is None else connection.throttle_remaining

    def supports(self, broker_id: int, api_key: int, version: int, purpose: str = "") -> bool:
        """Whether this broker supports this version of a request; false without a connection for this purpose."""
        connection = self._connections.get(broker_id, purpose)
        return connection is not None and versions.supports(connection.supported, api_key, version)

    def lacks(self) -> list[str]:
        """What one of the connected brokers lacks, for the log."""
        return self._connections.lacks()

    def release_buffers(self) -> None:
        """Frees the receive buffers of all connections; the connections stay open."""
        self._connections.release_buffers()

    def close(self) -> None:
        """Closes all connections. The cluster may be used again."""
        self._connections.close()

    def forget(self) -> None:
        """Closes all connections and drops all metadata, which was that of another cluster."""
        self.close()
        self._brokers.clear()
        self._topics.clear()

    def _call_any_broker(self, name: str, ask: Callable[[Connection, Deadline], Result], deadline: Deadline) -> Result:
        """Returns the first result of any broker. Tries all known brokers in turn, with backoff, until the deadline.

        Each broker gets an equal part of the time left, so that a silent broker leaves time for the others. A response
        that ``ask`` rejects counts as a failure. What one broker says about the sign-in, TLS or the protocol is about
        that broker: it is final once all brokers say so, or no other has answered at the deadline.

        Args:
            name: names the request in the error.
        """
        backoff = self._backoff()
        reported: list[GroupSourceError] = []
        rejection: AuthenticationFailed | None = None
        while True:
            errors: list[GroupSourceError] = []
            if found := self._call_each(ask, deadline, errors):
                return found[0]
            rejection = rejection or _first_rejection(errors)
            if all(isinstance(error, (ProtocolError, AuthenticationFailed)) for error in errors):
                raise rejection or errors[0]
            # A last pass that the deadline cuts short has fewer errors to report than the one before.
            reported = max(errors, reported, key=len)
            seconds = backoff.next()
            if deadline.remaining() <= seconds:
                if rejection is not None:
                    raise rejection
                raise _no_answer(name, reported) from reported[0]
            waiting.sleep(seconds, deadline)

    def _call_each(
        self, ask: Callable[[Connection, Deadline], Result], deadline: Deadline, errors: list[GroupSourceError]
    ) -> list[Result]:
        """One pass: returns the first result, or none at all, and adds the errors of the candidates before it."""
        candidates = self._candidates()
        for tried, candidate in enumerate(candidates):
            turn = _turn(deadline, len(candidates) - tried, self._least(candidate))
            if errors and turn.expired():
                break
            try:
                return [ask(candidate.connect(turn), turn.at_most(self.options.request_timeout))]
            except (BrokerUnavailable, DeadlineExceeded, ProtocolError, AuthenticationFailed) as error:
                errors.append(error)
        return []

    def _candidates(self) -> list[_Candidate]:
        """Returns the servers to ask, in the order of the tries.

        Connected brokers come first, then known brokers, then bootstrap servers; of each kind, those that failed least.
        But the second is a bootstrap server, whether it is a known broker or not: if the others have moved and their
        former addresses are silent, no number of them keeps the lookup from servers that know the new ones (the aim of
        KIP-899).
        """
        known = [self._known(broker_id) for broker_id in sorted(self._brokers, key=self._preference)]
        addresses = {candidate.address for candidate in known}
        servers = [server for server in self.options.bootstrap_servers if server not in addresses]
        servers.sort(key=SERVERS.failures)  # of equals the first one that the option names
        candidates = known + [_Candidate(each, partial(self._connections.to_bootstrap, *each)) for each in servers]
        bootstrap = [each for each in candidates[1:] if each.address in self.options.bootstrap_servers]
        if known and bootstrap:
            second = min(bootstrap, key=_Candidate.failures)
            candidates.remove(second)
            candidates.insert(1, second)
        return candidates

    def _least(self, candidate: _Candidate) -> float:
        """The minimum seconds of a turn. If a bootstrap server needs more for TLS, the sign-in and its answer, it gets
        more the next time."""
        is_bootstrap = candidate.address in self.options.bootstrap_servers
        return SERVERS.patience(candidate.address) if is_bootstrap else MIN_BROKER_TIMEOUT

    def _known(self, broker_id: int) -> _Candidate:
        broker = self._brokers[broker_id]
        return _Candidate((broker.host, broker.port), partial(self.connection, broker_id))

    def _preference(self, broker_id: int) -> tuple[bool, int, float]:
        return not self.is_connected(broker_id), self.failures(broker_id), random.random()

    def _backoff(self) -> Backoff:
        return Backoff(self.options.retry_backoff, self.options.retry_backoff_max)


def _first_rejection(errors: Iterable[GroupSourceError]) -> AuthenticationFailed | None:
    return next((error for error in errors if isinstance(error, AuthenticationFailed)), None)


def _turn(deadline: Deadline, left: int, least: float) -> Deadline:
    """The time of the next of ``left`` candidates: an equal part, or the ``least``, but only half if others wait."""
    if left == 1:
        return deadline
    remaining = deadline.remaining()
    return deadline.at_most(max(remaining / left, min(least, remaining / 2)))


def _no_answer(request: str, errors: Sequence[GroupSourceError]) -> BrokerUnavailable:
    """The error if no broker answered: another cluster that did is more likely the cause than silence."""
    happened = f"No Kafka broker answered {request}: {' '.join(each.happened for each in errors)}"
    for error in errors:
        if isinstance(error, OtherCluster):
            return OtherCluster(happened, error.action)
    return BrokerUnavailable(happened, next((each.action for each in errors if each.action), _UNREACHABLE))


def _coordinator_error(group_id: str, error_code: int) -> GroupError:
    action = (
        "Grant the principal READ on the group."
        if error_code == GROUP_AUTHORIZATION_FAILED
        else "Check 'kafka.group.id' and the brokers' logs."
    )
    happened = f"The lookup of the coordinator of group '{group_id}' failed: {describe_error_code(error_code)}."
    return GroupError(happened, action, error_code=error_code)
