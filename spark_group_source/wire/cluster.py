"""The cluster as one thread sees it: brokers, topics and leaders, and a connection to each broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    ProtocolError,
)
from spark_group_source.wire import versions
from spark_group_source.wire.connection import Connection, address
from spark_group_source.wire.settings import WireOptions

GROUP = 0
_TRANSIENT_COORDINATOR = {7, 14, 15, 16}
_GROUP_AUTHORIZATION_FAILED = 30

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker, where it can be reached."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``partitions`` maps each number to its leader's id, ``None`` where there is no leader now.

    ``error`` is Kafka's error code, 0 where all is well.
    """

    name: str
    id: str
    partitions: Mapping[int, int | None]
    internal: bool = False
    error: int = 0


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a broker told of the cluster."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)


class Cluster:
    """Brokers and connections of one thread. Connections are kept, and opened again when they broke."""

    def __init__(self, options: WireOptions) -> None:
        self.options = options
        self._brokers: dict[int, Broker] = {}
        self._connections: dict[tuple[int, str], Connection] = {}
        self._bootstrap: Connection | None = None
        self._topics: dict[str, Topic] = {}

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        """What the cluster says of these topics, or of all; never creates any.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        wanted = None
        if topics is not None:
            topic_of = MetadataRequest.MetadataRequestTopic
            wanted = [topic_of(version=versions.METADATA, name=name) for name in sorted(topics)]
        request = MetadataRequest(
            version=versions.METADATA,
            topics=wanted,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = self._ask_anyone(request, deadline)
        self._brokers = {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in answer.brokers}
        told = {each.name: _topic(each) for each in answer.topics}
        self._topics.update(told)
        return Metadata(dict(self._brokers), told)

    def topics(self, names: Collection[str], deadline: Deadline, *, fresh: bool = False) -> dict[str, Topic]:
        """What the cluster said of these topics last; asks where it has not been asked yet, or ``fresh`` is set.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        if fresh or any(name not in self._topics for name in names):
            self.metadata(names, deadline)
        return {name: self._topics[name] for name in names if name in self._topics}

    def coordinator(self, group_id: str, deadline: Deadline) -> Broker:
        """The broker that coordinates a group.

        Raises:
            BrokerUnavailable, DeadlineExceeded: there is none until the deadline.
            GroupError: the group may not be described.
        """
        request = FindCoordinatorRequest(version=versions.FIND_COORDINATOR, key_type=GROUP, coordinator_keys=[group_id])
        pause = self._pauses()
        while True:
            found = self._ask_anyone(request, deadline).coordinators[0]
            if not found.error_code:
                broker = Broker(found.node_id, found.host, found.port)
                self._brokers[broker.id] = broker
                return broker
            if found.error_code not in _TRANSIENT_COORDINATOR:
                raise _no_coordinator(group_id, found.error_code)
            if deadline.expired():
                raise DeadlineExceeded(f"No broker coordinates the group '{group_id}' (error {found.error_code}).")
            time.sleep(min(pause(), deadline.remaining()))

    def connection(self, broker_id: int, deadline: Deadline, purpose: str = "") -> Connection:
        """The connection to a broker for one purpose; different purposes do not wait for each other's answers.

        Raises:
            BrokerUnavailable: the broker is unknown or cannot be reached.
            DeadlineExceeded, ProtocolError: as :meth:`Connection.open`.
        """
        kept = self._connections.get((broker_id, purpose))
        if kept is not None and kept.usable():
            return kept
        if kept is not None:
            kept.close()
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise BrokerUnavailable(f"Broker {broker_id} is not known to the cluster.")
        opened = Connection.open(broker.host, broker.port, self.options, deadline)
        self._connections[broker_id, purpose] = opened
        return opened

    def close(self) -> None:
        """Closes all connections; the cluster may be used again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._bootstrap is not None:
            self._bootstrap.close()
            self._bootstrap = None

    def _ask_anyone(self, request: Any, deadline: Deadline) -> Any:
        """The first answer of any broker; rounds over all that are known, with pauses, until the deadline."""
        pause = self._pauses()
        while True:
            trouble: dict[str, GroupSourceError] = {}
            for where, connect in self._candidates(deadline):
                if trouble and deadline.expired():
                    break
                try:
                    return connect().call(request, deadline.at_most(self.options.request_timeout))
                except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
                    trouble[where] = error
            rest = pause()
            if deadline.remaining() <= rest:
                reasons = "; ".join(each.happened for each in trouble.values())
                raise BrokerUnavailable(
                    f"No Kafka broker answered {request.name}: {reasons}",
                    "Check 'kafka.bootstrap.servers', and that the addresses brokers advertise can be reached.",
                ) from next(iter(trouble.values()), None)
            time.sleep(rest)

    def _candidates(self, deadline: Deadline) -> list[tuple[str, Callable[[], Connection]]]:
        """Ways to a broker: those connected, those known, then the bootstrap list, whose meaning may have changed."""

        def to_known(broker_id: int) -> Callable[[], Connection]:
            return lambda: self.connection(broker_id, deadline)

        def to_bootstrap(host: str, port: int) -> Callable[[], Connection]:
            return lambda: self._connect_bootstrap(host, port, deadline)

        known = sorted(self._brokers, key=lambda each: ((each, "") not in self._connections, random.random()))
        ways = [(str(each), to_known(each)) for each in known]
        return ways + [(address(*where), to_bootstrap(*where)) for where in self.options.bootstrap_servers]

    def _connect_bootstrap(self, host: str, port: int, deadline: Deadline) -> Connection:
        if self._bootstrap is not None and self._bootstrap.usable() and str(self._bootstrap) == address(host, port):
            return self._bootstrap
        if self._bootstrap is not None:
            self._bootstrap.close()
        self._bootstrap = Connection.open(host, port, self.options, deadline)
        return self._bootstrap

    def _pauses(self) -> Callable[[], float]:
        pause = self.options.retry_backoff

        def following() -> float:
            nonlocal pause
            now, pause = pause, min(pause * 2, self.options.retry_backoff_max)
            return now

        return following


def _topic(told: Any) -> Topic:
    return Topic(
        told.name,
        str(told.topic_id),
        {each.partition_index: each.leader_id if each.leader_id >= 0 else None for each in told.partitions},
        told.is_internal,
        told.error_code,
    )


def _no_coordinator(group_id: str, errno: int) -> GroupError:
    action = (
        "Grant the principal READ on the group."
        if errno == _GROUP_AUTHORIZATION_FAILED
        else "Check 'kafka.group.id' and the brokers' logs."
    )
    return GroupError(f"The coordinator of group '{group_id}' cannot be had: error {errno}.", action, errno=errno)
