"""The fetches of one task: which are due, sent and in flight, and the wait for their responses."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import RetriableError
from spark_group_source.fetch.broker_selection import BrokerSelection
from spark_group_source.fetch.error_handler import FetchErrorHandler
from spark_group_source.fetch.messages import FetchPartition, build_request
from spark_group_source.fetch.position import FetchPosition
from spark_group_source.fetch.preferred_replicas import PreferredReplicas
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.fetch.task_timeout import TaskTimeout
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.response import Response
from spark_group_source.wire.waiting import poll_readable

FETCHES = "fetch"
CONNECT_TIME = 10.0
"""How long a task tries to connect to brokers before it requests new metadata, in seconds. If many brokers do not
answer, they may have new addresses."""


@dataclass(frozen=True, slots=True)
class RequestedPartition:
    """One partition of a fetch: ``size`` bytes from ``offset``, the offset that ``position`` had when the fetch was
    sent."""

    position: FetchPosition
    offset: int
    size: int

    @property
    def has_moved(self) -> bool:
        """Whether the position has moved to another offset since the fetch was sent."""
        return self.position.offset != self.offset


@dataclass(frozen=True, slots=True)
class InFlightFetch:
    """A fetch that waits for its response."""

    broker: int
    connection: Connection
    requested: Sequence[RequestedPartition]
    max_bytes: int
    sent_at: float
    deadline: Deadline

    @property
    def positions(self) -> list[FetchPosition]:
        """The positions to fetch for."""
        return [requested.position for requested in self.requested]

    def advanced(self) -> bool:
        """Whether the response advanced any position."""
        return any(requested.position.offset > requested.offset for requested in self.requested)


class Fetches:
    """The fetches of one task: at most one in flight for each broker.

    Args:
        positions: all positions of the task; those that are due are fetched.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: FetchSettings,
        positions: Sequence[FetchPosition],
        replicas: PreferredReplicas,
        errors: FetchErrorHandler,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._positions = positions
        self._replicas = replicas
        self._errors = errors
        self._clock = clock
        self._selection = BrokerSelection(cluster, replicas, errors)
        self._in_flight: dict[int, InFlightFetch] = {}

    @property
    def max_wait(self) -> float:
        """Maximum seconds that a broker waits for records: less than this client waits for the response, since the
        broker would seem silent otherwise."""
        client = min(self._cluster.options.request_timeout, self._settings.poll_timeout)
        return min(self._settings.max_wait, client / 2)

    def send(self, timeout: TaskTimeout) -> None:
        """Sends a fetch to every broker that has due positions and no fetch in flight."""
        due = self._due()
        timeout.record_attempts(due)
        by_broker: dict[int, list[FetchPosition]] = defaultdict(list)
        for position, broker in self._selection.brokers(due, timeout.limit(self._errors.deadline())):
            by_broker[broker].append(position)
        connect_by = Deadline.after(CONNECT_TIME, self._clock)
        idle = [broker for broker in by_broker if broker not in self._in_flight]
        for broker in sorted(idle, key=self._preference):
            throttled = self._cluster.throttle_remaining(broker, FETCHES)
            if throttled:
                self._wait_for_throttling(broker, by_broker[broker], throttled)
            else:
                self._send(broker, by_broker[broker], connect_by)

    def wait(self, timeout: TaskTimeout) -> list[int]:
        """Waits for a response, and returns the brokers whose response has begun to arrive. Gives up overdue responses.

        The wait also ends when the backoff of a position does, and when the timeout has to be checked.
        """
        now = self._clock()
        left = timeout.wakes_at - now
        delays = self._delays(now)
        if not self._in_flight:
            pause = 0.0
            if delays:
                pause = max(0.0, min(*delays, left))
            time.sleep(pause)
            return []
        request_timeouts = [fetch.deadline.remaining() for fetch in self._in_flight.values()]
        broker_of = {fetch.connection.fileno(): broker for broker, fetch in self._in_flight.items()}
        readable = poll_readable(broker_of, min(*delays, *request_timeouts, left))
        ready = [broker_of[descriptor] for descriptor in readable]
        self._give_up_overdue(ready)
        return ready

    def take(self, broker: int) -> InFlightFetch:
        """Returns the fetch from a broker whose response has begun to arrive; it is no longer in flight."""
        return self._in_flight.pop(broker)

    def receive(self, fetch: InFlightFetch) -> Response | None:
        """The response to a fetch. If it does not come, the positions back off, and the result is ``None``."""
        try:
            return fetch.connection.receive_raw(self._errors.deadline())
        except RetriableError as error:
            self._errors.back_off(fetch.positions, error.happened)
            return None

    def drop_connection(self, fetch: InFlightFetch) -> None:
        """Closes the connection of a fetch, which also ends a later fetch over it."""
        fetch.connection.close()
        later = self._in_flight.get(fetch.broker)
        if later is not None and later.connection is fetch.connection:
            del self._in_flight[fetch.broker]

    def _due(self) -> list[FetchPosition]:
        """The positions to fetch now: those without a delay, and not in a fetch in flight."""
        now = self._clock()
        in_flight: set[int] = set()
        for fetch in self._in_flight.values():
            for requested in fetch.requested:
                in_flight.add(id(requested.position))
        due = []
        for position in self._positions:
            is_delayed = position.next_fetch_at > now
            if position.done or is_delayed or id(position) in in_flight:
                continue
            due.append(position)
        return due

    def _wait_for_throttling(self, broker: int, positions: list[FetchPosition], seconds: float) -> None:
        """Delays the fetches of one broker. The task still reads from the others."""
        for position in positions:
            position.next_fetch_at = self._clock() + seconds
            position.last_problem = f"broker {broker} throttles this client"

    def _preference(self, broker: int) -> tuple[bool, int]:
        """Sorts connected brokers first, and brokers whose connections have failed last, so that the others need not
        wait."""
        return not self._cluster.is_connected(broker, FETCHES), self._cluster.failures(broker)

    def _send(self, broker: int, positions: list[FetchPosition], connect_by: Deadline) -> None:
        if connect_by.expired() and not self._cluster.is_connected(broker, FETCHES):
            self._errors.back_off(positions, f"other brokers did not answer, and broker {broker} was not tried")
            return
        deadline = self._errors.deadline()
        max_bytes = max(self._settings.max_bytes, *(position.partition_max_bytes for position in positions))
        request = build_request(
            [FetchPartition(p.tp, p.topic_id, p.offset, p.partition_max_bytes, p.leader_epoch) for p in positions],
            max_wait=self.max_wait,
            max_bytes=max_bytes,
            read_committed=self._settings.read_committed,
            min_bytes=self._settings.min_bytes,
            rack=self._replicas.rack({position.tp for position in positions}),
        )
        try:
            patience = deadline.at_most(self._cluster.patience(broker))
            connection = self._cluster.connection(broker, patience, FETCHES)
            connection.send(request, deadline)
        except RetriableError as error:
            # The action names the setting of the brokers to correct, if this host can reach only some of them.
            self._errors.back_off(positions, f"{error.happened} {error.action}".strip())
            return
        requested = [RequestedPartition(p, p.offset, p.partition_max_bytes) for p in positions]
        self._in_flight[broker] = InFlightFetch(broker, connection, requested, max_bytes, self._clock(), deadline)

    def _delays(self, now: float) -> list[float]:
        """Seconds until the next fetch of each position that has a delay."""
        delays = []
        for position in self._positions:
            if position.next_fetch_at > now and not position.done:
                delays.append(position.next_fetch_at - now)
        return delays

    def _give_up_overdue(self, ready: Sequence[int]) -> None:
        """Closes the connections of brokers that did not answer in time. The brokers in ``ready`` have answered."""
        overdue = [broker for broker, fetch in self._in_flight.items() if fetch.deadline.expired()]
        for broker in set(overdue).difference(ready):
            fetch = self._in_flight.pop(broker)
            fetch.connection.close()
            timeout = self._cluster.options.request_timeout
            self._errors.back_off(fetch.positions, f"broker {fetch.connection} did not answer within {timeout:.1f} s")
