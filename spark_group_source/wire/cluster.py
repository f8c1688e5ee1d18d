"""The cluster as one thread sees it: brokers, topics and leaders, and a connection to each broker."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

from spark_group_source.clock import Deadline, monotonic
from spark_group_source.error_codes import GROUP_AUTHORIZATION_FAILED
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    ProtocolError,
)
from spark_group_source.wire import metadata, sockets, versions, waiting
from spark_group_source.wire.backoff import Backoff
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.credential_rejections import CredentialRejections
from spark_group_source.wire.metadata import Broker, Metadata, Topic
from spark_group_source.wire.reconnect_backoff import ReconnectBackoff
from spark_group_source.wire.settings import WireOptions

GROUP = 0
LEAST_TURN = 1.0
"""Seconds that each broker has at least for an answer that any of them can give, as long as the deadline allows."""

# UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
_TRANSIENT_COORDINATOR = {-1, 7, 14, 15, 16}

KEEP_TOPICS = 600.0
"""Seconds for which a topic is kept that nobody asks for any more."""

_UNREACHABLE = "Check 'kafka.bootstrap.servers', and that the addresses brokers advertise can be reached."


class Cluster:
    """Brokers and connections of one thread. Connections are kept, and opened again when they broke.

    Args:
        auth_retry_timeout: seconds for which a rejected authentication is retried in a process that never authenticated
            with these options. After a success it is retried for longer: see :class:`CredentialRejections`.
    """

    def __init__(self, options: WireOptions, auth_retry_timeout: float = 0.0) -> None:
        self.options = options
        self._refusals = CredentialRejections(options, auth_retry_timeout)
        self._brokers: dict[int, Broker] = {}
        self._connections: dict[tuple[int, str], Connection] = {}
        self._bootstrap: Connection | None = None
        self._attempts = ReconnectBackoff(options)
        self._topics: dict[str, Topic] = {}
        self._asked_at: dict[str, float] = {}

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """What the cluster says of these topics, or of all; never creates any.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        told = metadata.interpret(self._ask_anyone(metadata.build(topics), deadline, metadata.check))
        self._brokers = dict(told.brokers)
        for where, kept in list(self._connections.items()):
            # A broker that was retired has ended its connections; nobody asks for one to that id again.
            if where[0] not in self._brokers and not kept.in_flight and not kept.is_reusable():
                kept.close()
                del self._connections[where]
        now = monotonic()
        self._asked_at.update(dict.fromkeys(topics or (), now))
        self._asked_at = {name: at for name, at in self._asked_at.items() if now - at <= KEEP_TOPICS}
        # A pattern's lookup lists every topic of the cluster: only those that somebody reads are kept.
        self._topics = {n: topic for n, topic in {**self._topics, **told.topics}.items() if n in self._asked_at}
        return told

    def metadata_from(self, broker_id: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """What one broker says of these topics, or of all. Changes nothing of what is known here.

        Raises:
            BrokerUnavailable, DeadlineExceeded, ProtocolError: this broker did not answer until the deadline.
        """
        answer = self.connection(broker_id, deadline).call(metadata.build(topics), deadline)
        metadata.check(answer)
        return metadata.interpret(answer)

    def broker_ids(self) -> list[int]:
        """The brokers of the cluster as last told, those connected first."""
        return sorted(self._brokers, key=lambda each: (not self.is_connected(each), each))

    def topics(self, names: Collection[str], deadline: Deadline, *, fresh: bool = False) -> dict[str, Topic]:
        """What the cluster said of these topics last; asks where it has not been asked yet, or ``fresh`` is set.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        self._asked_at.update(dict.fromkeys(names, monotonic()))
        if fresh or any(name not in self._topics for name in names):
            self.metadata(names, deadline)
        return {name: self._topics[name] for name in names if name in self._topics}

    def invalidate_topics(self, names: Iterable[str]) -> None:
        """The next call of :meth:`topics` asks for these anew."""
        for name in names:
            self._topics.pop(name, None)

    def find_coordinator(self, group_id: str, deadline: Deadline) -> Broker:
        """The broker that coordinates a group.

        Raises:
            BrokerUnavailable, DeadlineExceeded: there is none until the deadline.
            GroupError: the group may not be described.
        """
        request = FindCoordinatorRequest(version=versions.FIND_COORDINATOR, key_type=GROUP, coordinator_keys=[group_id])
        backoff = self._backoff()
        while True:
            found = self._ask_anyone(request, deadline).coordinators[0]
            if not found.error_code:
                broker = Broker(found.node_id, found.host, found.port)
                self._brokers[broker.id] = broker
                return broker
            if found.error_code not in _TRANSIENT_COORDINATOR:
                raise _no_coordinator(group_id, found.error_code)
            pause = backoff.next()
            # Another question that the deadline cuts short would tell less than this answer.
            if deadline.remaining() <= pause + LEAST_TURN:
                raise DeadlineExceeded(f"No broker coordinates the group '{group_id}' (error {found.error_code}).")
            waiting.sleep(pause, deadline)

    def connection(self, broker_id: int, deadline: Deadline, purpose: str = "") -> Connection:
        """The connection to a broker for one purpose; different purposes do not wait for each other's answers.

        Raises:
            BrokerUnavailable: the broker is unknown or cannot be reached.
            AuthenticationFailed, DeadlineExceeded, ProtocolError: as :meth:`Connection.open`.
        """
        kept = self._connections.get((broker_id, purpose))
        broker = self._brokers.get(broker_id)
        if kept is not None:
            moved = broker is not None and (broker.host, broker.port) != (kept.host, kept.port)
            if not moved and self._fit(kept):
                return kept
            kept.close()
        if broker is None:
            raise BrokerUnavailable(f"Broker {broker_id} is not known to the cluster.")
        opened = self._open(broker.host, broker.port, deadline, broker_id)
        self._connections[broker_id, purpose] = opened
        return opened

    def is_connected(self, broker_id: int) -> bool:
        """Whether there is a connection to this broker that has not failed as far as is known."""
        kept = self._connections.get((broker_id, ""))
        return kept is not None and not kept.closed

    def throttle_remaining(self, broker_id: int, purpose: str = "") -> float:
        """Seconds until this broker reads requests from the connection for this purpose again; 0 if it does."""
        kept = self._connections.get((broker_id, purpose))
        return 0.0 if kept is None or kept.closed else kept.throttle_remaining

    def release_buffers(self) -> None:
        """Gives back what answers were received into; connections stay."""
        for connection in self._connections.values():
            connection.release_buffers()

    def close(self) -> None:
        """Closes all connections; the cluster may be used again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._bootstrap is not None:
            self._bootstrap.close()
            self._bootstrap = None

    def _ask_anyone(self, request: Any, deadline: Deadline, check: Callable[[Any], None] = lambda answer: None) -> Any:
        """The first answer of any broker; rounds over all that are known, with pauses, until the deadline.

        Each has a fair part of the time that is left, so that one that is silent leaves time for the others; so does
        one whose answer ``check`` refuses.

        Raises:
            AuthenticationFailed: a broker refused this client for good; the others are not asked then.
            BrokerUnavailable: no broker answered until the deadline.
            ProtocolError: all of them are too old, or are no Kafka brokers.
        """
        backoff = self._backoff()
        told: list[GroupSourceError] = []
        while True:
            trouble: list[GroupSourceError] = []
            candidates = self._candidates()
            for asked, connect in enumerate(candidates):
                turn = deadline.at_most(max(deadline.remaining() / (len(candidates) - asked), LEAST_TURN))
                if trouble and turn.expired():
                    break
                try:
                    answer = connect(turn).call(request, turn.at_most(self.options.request_timeout))
                    check(answer)
                    return answer
                except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
                    trouble.append(error)
            if all(isinstance(each, ProtocolError) for each in trouble):
                raise trouble[0]
            # A last round that the deadline cuts short tells less than the one before.
            told = max(trouble, told, key=len)
            pause = backoff.next()
            if deadline.remaining() <= pause:
                raise BrokerUnavailable(
                    f"No Kafka broker answered {request.name}: {' '.join(each.happened for each in told)}",
                    next((each.action for each in told if each.action), _UNREACHABLE),
                ) from told[0]
            waiting.sleep(pause, deadline)

    def _candidates(self) -> list[Callable[[Deadline], Connection]]:
        """Ways to a broker: those connected, those known, then the rest of the bootstrap list."""

        def to_known(broker_id: int) -> Callable[[Deadline], Connection]:
            return lambda deadline: self.connection(broker_id, deadline)

        def to_bootstrap(host: str, port: int) -> Callable[[Deadline], Connection]:
            return lambda deadline: self._connect_bootstrap(host, port, deadline)

        known = sorted(self._brokers, key=lambda each: (not self.is_connected(each), random.random()))
        addresses = {(each.host, each.port) for each in self._brokers.values()}
        rest = [where for where in self.options.bootstrap_servers if where not in addresses]
        return [to_known(each) for each in known] + [to_bootstrap(*where) for where in rest]

    def _connect_bootstrap(self, host: str, port: int, deadline: Deadline) -> Connection:
        names = sockets.canonical_names(host, deadline) if self.options.canonical_bootstrap else [host]
        kept = self._bootstrap
        if kept is not None and kept.host in names and kept.port == port and self._fit(kept):
            return kept
        if kept is not None:
            kept.close()
        # Rounds are repeated until one answers, so each name has its turn.
        self._bootstrap = self._open(random.choice(names), port, deadline)
        return self._bootstrap

    def _open(self, host: str, port: int, deadline: Deadline, broker_id: int | None = None) -> Connection:
        """A new connection, unless this address failed a moment ago."""
        where = host, port
        self._attempts.check(where)
        try:
            within = deadline.at_most(self._attempts.timeout(where))
            opened = Connection.open(host, port, self.options, within, broker_id)
        except AuthenticationFailed as error:
            refused = self._refusals.retriable(error, self._answered_at())
            self._attempts.failed(where, refused)
            raise refused from error
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self._attempts.failed(where, error)
            raise
        self._attempts.succeeded(where)
        self._refusals.accepted()
        return opened

    def _answered_at(self) -> float | None:
        """When any broker last answered."""
        kept = [*self._connections.values(), *filter(None, [self._bootstrap])]
        return max((each.answered_at for each in kept if each.answered_at is not None), default=None)

    def _fit(self, kept: Connection) -> bool:
        return kept.is_reusable() and monotonic() - kept.used_at <= self.options.max_idle

    def _backoff(self) -> Backoff:
        return Backoff(self.options.retry_backoff, self.options.retry_backoff_max)


def _no_coordinator(group_id: str, errno: int) -> GroupError:
    action = (
        "Grant the principal READ on the group."
        if errno == GROUP_AUTHORIZATION_FAILED
        else "Check 'kafka.group.id' and the brokers' logs."
    )
    return GroupError(f"The coordinator of group '{group_id}' cannot be had: error {errno}.", action, errno=errno)
