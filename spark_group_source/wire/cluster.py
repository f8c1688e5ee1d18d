"""The cluster as one thread sees it: its brokers, topics and leaders, and requests that any broker can answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

from spark_group_source.clock import Backoff, Deadline, monotonic
from spark_group_source.errors import (
    GROUP_AUTHORIZATION_FAILED,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    ProtocolError,
    describe,
)
from spark_group_source.wire import metadata, versions, waiting
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.connections import Connections
from spark_group_source.wire.metadata import Broker, Metadata, Topic
from spark_group_source.wire.settings import WireOptions

GROUP = 0
MIN_BROKER_TIMEOUT = 1.0
"""Minimum seconds that each broker gets for a request that any broker can answer, if the deadline allows."""

# UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_RETRIABLE_COORDINATOR_ERRORS = {-1, 7, 14, 15, 16}

KEEP_TOPICS = 600.0
"""How many seconds the metadata of a topic is kept after the last request for the topic."""

_UNREACHABLE = "Check 'kafka.bootstrap.servers', and that this machine can reach the addresses that brokers advertise."


class Cluster:
    """Brokers, topics and connections of one thread.

    Args:
        auth_retry_timeout: seconds for which a rejected authentication is retried in a process that never authenticated
            with these options. After a success it is retried for longer: see :class:`CredentialRejections`.
    """

    def __init__(self, options: WireOptions, auth_retry_timeout: float = 0.0) -> None:
        self.options = options
        self._connections = Connections(options, auth_retry_timeout)
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, Topic] = {}
        self._requested_at: dict[str, float] = {}

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Requests the metadata of these topics, or of all, from any broker. Never creates a topic.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        response = self._call_any_broker(metadata.build_request(topics), deadline, metadata.check_response)
        found = metadata.parse_response(response)
        self._brokers = dict(found.brokers)
        self._connections.close_retired(self._brokers.keys())
        now = monotonic()
        self._requested_at.update(dict.fromkeys(topics or (), now))
        self._requested_at = {name: at for name, at in self._requested_at.items() if now - at <= KEEP_TOPICS}
        # The lookup of a pattern lists every topic of the cluster. Only topics that somebody reads are kept.
        self._topics = {n: topic for n, topic in {**self._topics, **found.topics}.items() if n in self._requested_at}
        return found

    def metadata_from(self, broker_id: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Requests the metadata of these topics, or of all, from one broker. Leaves the kept metadata as it is.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: the broker did not respond before the deadline.
        """
        response = self.connection(broker_id, deadline).call(metadata.build_request(topics), deadline)
        metadata.check_response(response)
        return metadata.parse_response(response)

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
        request = FindCoordinatorRequest(version=versions.FIND_COORDINATOR, key_type=GROUP, coordinator_keys=[group_id])
        backoff = self._backoff()
        while True:
            coordinator = self._call_any_broker(request, deadline).coordinators[0]
            errno = coordinator.error_code
            if not errno:
                broker = Broker(coordinator.node_id, coordinator.host, coordinator.port)
                self._brokers[broker.id] = broker
                return broker
            if errno not in _RETRIABLE_COORDINATOR_ERRORS:
                raise _coordinator_error(group_id, errno)
            seconds = backoff.next()
            # If the deadline cut another request short, its error would explain less than this response.
            if deadline.remaining() <= seconds + MIN_BROKER_TIMEOUT:
                raise DeadlineExceeded(
                    f"Group '{group_id}' has no coordinator yet: {describe(errno)}.",
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

    def is_connected(self, broker_id: int, purpose: str = "") -> bool:
        """Whether a connection to this broker is open and has not failed as far as this thread knows."""
        return self._connections.get(broker_id, purpose) is not None

    def throttle_remaining(self, broker_id: int, purpose: str = "") -> float:
        """Returns the seconds until this broker reads again from its connection for this purpose."""
        connection = self._connections.get(broker_id, purpose)
        return 0.0 if connection is None else connection.throttle_remaining

    def supports(self, broker_id: int, api_key: int, version: int, purpose: str = "") -> bool:
        """Whether this broker supports this version of a request; false without a connection for this purpose."""
        connection = self._connections.get(broker_id, purpose)
        lowest, highest = (0, -1) if connection is None else connection.supported.get(api_key, (0, -1))
        return lowest <= version <= highest

    def release_buffers(self) -> None:
        """Frees the receive buffers of all connections; the connections stay open."""
        self._connections.release_buffers()

    def close(self) -> None:
        """Closes all connections. The cluster may be used again."""
        self._connections.close()

    def _call_any_broker(
        self, request: Any, deadline: Deadline, check: Callable[[Any], None] = lambda response: None
    ) -> Any:
        """Returns the first response of any broker. Tries all known brokers in turn, with backoff, until the deadline.

        Each broker gets an equal part of the time left, so that a silent broker leaves time for the others. A response
        that ``check`` rejects counts as a failure.

        Raises:
            AuthenticationFailed: a broker rejected this client for good. The source does not try the others then.
            BrokerUnavailable: no broker responded before the deadline.
            ProtocolError: all servers are too old, or are not Kafka brokers.
        """
        backoff = self._backoff()
        reported: list[GroupSourceError] = []
        while True:
            errors: list[GroupSourceError] = []
            candidates = self._candidates()
            for tried, connect in enumerate(candidates):
                turn = deadline.at_most(max(deadline.remaining() / (len(candidates) - tried), MIN_BROKER_TIMEOUT))
                if errors and turn.expired():
                    break
                try:
                    response = connect(turn).call(request, turn.at_most(self.options.request_timeout))
                    check(response)
                    return response
                except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
                    errors.append(error)
            if all(isinstance(error, ProtocolError) for error in errors):
                raise errors[0]
            # A last pass that the deadline cuts short has fewer errors to report than the one before.
            reported = max(errors, reported, key=len)
            seconds = backoff.next()
            if deadline.remaining() <= seconds:
                raise BrokerUnavailable(
                    f"No Kafka broker answered {request.name}: {' '.join(each.happened for each in reported)}",
                    next((each.action for each in reported if each.action), _UNREACHABLE),
                ) from reported[0]
            waiting.sleep(seconds, deadline)

    def _candidates(self) -> list[Callable[[Deadline], Connection]]:
        """Returns functions that connect: to connected brokers first, then known brokers, then bootstrap servers."""

        def to_known(broker_id: int) -> Callable[[Deadline], Connection]:
            return lambda deadline: self.connection(broker_id, deadline)

        def to_bootstrap(host: str, port: int) -> Callable[[Deadline], Connection]:
            return lambda deadline: self._connections.to_bootstrap(host, port, deadline)

        known = sorted(self._brokers, key=lambda broker_id: (not self.is_connected(broker_id), random.random()))
        addresses = {(broker.host, broker.port) for broker in self._brokers.values()}
        rest = [server for server in self.options.bootstrap_servers if server not in addresses]
        return [to_known(broker_id) for broker_id in known] + [to_bootstrap(*server) for server in rest]

    def _backoff(self) -> Backoff:
        return Backoff(self.options.retry_backoff, self.options.retry_backoff_max)


def metadata_from_each(
    cluster: Cluster, topics: Collection[str] | None, deadline: Deadline
) -> Iterator[tuple[int, Metadata | GroupSourceError]]:
    """Asks each broker for the metadata of these topics, or of all; yields its id, and its answer or error.

    The time is divided between the brokers that are left, so that one that does not answer leaves time for the others.
    """
    brokers = cluster.broker_ids()
    for left, broker in zip(range(len(brokers), 0, -1), brokers, strict=True):
        answer: Metadata | GroupSourceError
        try:
            answer = cluster.metadata_from(broker, topics, deadline.at_most(deadline.remaining() / left))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            answer = error
        yield broker, answer


def _coordinator_error(group_id: str, errno: int) -> GroupError:
    action = (
        "Grant the principal READ on the group."
        if errno == GROUP_AUTHORIZATION_FAILED
        else "Check 'kafka.group.id' and the brokers' logs."
    )
    happened = f"The lookup of the coordinator of group '{group_id}' failed: {describe(errno)}."
    return GroupError(happened, action, errno=errno)
