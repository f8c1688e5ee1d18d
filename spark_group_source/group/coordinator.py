"""Sends requests to a group's coordinator, and turns errors and missing responses into failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    NOT_COORDINATOR,
    UNKNOWN_SERVER_ERROR,
    UNRELEASED_INSTANCE_ID,
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    ProtocolError,
    describe_error_code,
)
from spark_group_source.group.current_coordinator import CurrentCoordinator
from spark_group_source.group.error_actions import ErrorAction, error_action, fatal
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.timings import Timings
from spark_group_source.wire.any_broker import MIN_BROKER_TIMEOUT
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.metadata import Topic, ids_of
from spark_group_source.wire.waiting import Interrupted

Result = TypeVar("Result")

MEMBERSHIP = "membership"
"""The purpose of the connection for the requests of the membership. Lookups and commits of offsets use others."""

CALL_ERRORS = BrokerUnavailable, DeadlineExceeded, ProtocolError, GroupError, AuthenticationFailed
"""The errors that a request to the coordinator may raise; the last two are fatal."""


@dataclass(frozen=True, slots=True)
class WhileWaiting:
    """Sends heartbeats while the response to a JoinGroup or SyncGroup is pending, which may take minutes.

    ``heartbeat`` is called each ``interval`` seconds. If it returns a failure, the pending response has one more
    interval to arrive; then the failure ends the wait.
    """

    heartbeat: Callable[[], RequestFailed | None]
    interval: float

    def until_response(self, connection: Connection, deadline: Deadline) -> RequestFailed | None:
        """Waits until a response begins to arrive or the deadline passes; returns the failure that ended the wait."""
        failure: RequestFailed | None = None
        while not connection.wait_for_response(deadline.at_most(self.interval)):
            if failure is not None or deadline.expired():
                return failure
            failure = self.heartbeat()
        return None


LATE_REQUESTS = 600.0
"""Seconds for which a request without an answer may still arrive: by default, brokers close a connection that was idle
for as long (``connections.max.idle.ms``)."""


_MISSING_PERMISSION = {GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED}

_HINTS = {
    UNKNOWN_SERVER_ERROR: ": see the log of the coordinator; for a large group, its record may exceed the brokers'"
    " message.max.bytes",
    COORDINATOR_LOAD_IN_PROGRESS: ": the coordinator still loads the group; if this lasts, see its log",
    COORDINATOR_NOT_AVAILABLE: ": no broker coordinates the group; check that the topic __consumer_offsets has leaders",
    NOT_COORDINATOR: ": the group has moved to another coordinator; if this lasts, check that the topic"
    " __consumer_offsets has leaders",
    UNRELEASED_INSTANCE_ID: ": another member still has the 'kafka.group.instance.id' of this query, until it leaves"
    " under this id or its session ends; stop that member, or give each query an instance id of its own",
}
"""What error codes mean and what an operator can do, for the reason of a failure that is retried."""


class CoordinatorClient:
    """One connection to a group's coordinator, over one thread's cluster. A client that does not know the coordinator
    uses the broker that another client of the query has found, or looks up the coordinator.

    Each ``purpose`` has its own connection, because a JoinGroup that waits at the broker delays all later requests on
    the same connection.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        purpose: str,
        timings: Timings | None = None,
        current: CurrentCoordinator | None = None,
    ) -> None:
        if current is None:
            current = CurrentCoordinator()
        if timings is None:
            timings = Timings()
        self._current = current
        self._cluster = cluster
        self._group_id = group_id
        self._purpose = purpose
        self._timings = timings
        self._broker_id: int | None = None
        self._has_looked_up = False

    def rediscover(self) -> None:
        """Looks up the coordinator again before the next request."""
        self._broker_id = None
        self._has_looked_up = True

    @property
    def broker_id(self) -> int | None:
        """The coordinator's broker id, if known."""
        return self._broker_id

    @property
    def throttled(self) -> float:
        """Seconds until the coordinator reads the next request, because this client exceeds a quota."""
        if self._broker_id is None:
            return 0.0
        return self._cluster.throttle_remaining(self._broker_id, self._purpose)

    def supports(self, api_key: int, version: int) -> bool:
        """Whether the coordinator that the last request reached supports this version of a request."""
        if self._broker_id is None:
            return False
        return self._cluster.supports(self._broker_id, api_key, version, self._purpose)

    def call(self, request: Any, deadline: Deadline, while_waiting: WhileWaiting | None = None) -> Any:
        """Returns the broker's response, or :class:`RequestFailed` if none arrived.

        Only the response may take until the deadline: finding the coordinator takes at most one request timeout.

        Raises:
            Interrupted: the deadline's wakeup was set; the request is pending, and the connection is closed.
        """
        sent = False
        try:
            quick = deadline.at_most(self._cluster.options.request_timeout)
            connection = self._connect(quick)
            began, sent = deadline.clock(), True
            connection.send(request, quick)
            try:
                response = self._await_response(connection, deadline, while_waiting)
            except Interrupted:
                # The next request on this connection would read the response that is still to arrive.
                connection.close()
                raise
            if isinstance(response, RequestFailed):
                connection.close()
            else:
                self._timings.record(request.name, deadline.clock() - began)
            return response
        except CALL_ERRORS as error:
            return replace(self._failed(error), unanswered=sent)

    def _await_response(
        self, connection: Connection, deadline: Deadline, while_waiting: WhileWaiting | None
    ) -> Any | RequestFailed:
        """The response, or the failure of a heartbeat in the meantime, after which the response does not count."""
        if while_waiting is None:
            return connection.receive(deadline)
        failure = while_waiting.until_response(connection, deadline)
        if failure is not None:
            return failure
        # A response may break off after its first bytes, and no heartbeat is sent while the rest is awaited.
        return connection.receive(deadline.at_most(self._cluster.options.request_timeout))

    def _connect(self, deadline: Deadline) -> Connection:
        if self._broker_id is None and not self._has_looked_up:
            connection = self._connect_to_current(deadline)
            if connection is not None:
                return connection
        if self._broker_id is None or self._broker_id != self._current.id:
            self._find(deadline)
        assert self._broker_id is not None
        return self._cluster.connection(self._broker_id, deadline, self._purpose)

    def _connect_to_current(self, deadline: Deadline) -> Connection | None:
        """Connects to the coordinator that another client of the query has found; ``None`` if none of them has, or if
        the connection fails: another broker may be the coordinator by now.

        Raises:
            AuthenticationFailed: as :meth:`Cluster.connection`.
        """
        found = self._current.broker
        if found is None:
            return None
        self._cluster.add_broker(found)
        try:
            connection = self._cluster.connection(found.id, deadline, self._purpose)
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError):
            return None
        self._broker_id = found.id
        return connection

    def connect(self, deadline: Deadline) -> RequestFailed | None:
        """Connects to the coordinator, so that :meth:`supports` knows its versions; ``None`` if that succeeded."""
        return self._failure_of(lambda: self._connect(deadline.at_most(self._cluster.options.request_timeout)))

    def _failure_of(self, attempt: Callable[[], object]) -> RequestFailed | None:
        try:
            attempt()
        except CALL_ERRORS as error:
            return self._failed(error)
        return None

    def topic_ids(self, topics: Collection[str], deadline: Deadline) -> dict[str, str] | RequestFailed:
        """The ids of these topics that the coordinator knows, if any. Offsets that it returns afterwards belong to
        these topics or to later topics of the same names."""
        quick = deadline.at_most(self._cluster.options.request_timeout)
        try:
            found = self._cluster.request_metadata(self._connect(quick), topics, quick).topics
        except CALL_ERRORS as error:
            return self._failed(error)
        return ids_of(found)

    def topics(
        self, names: Collection[str], deadline: Deadline, *, with_permissions: bool
    ) -> dict[str, Topic] | RequestFailed:
        """The metadata of these topics from the coordinator: their ids, as :meth:`topic_ids`, their leaders, and this
        principal's permissions. The cluster keeps this metadata."""
        quick = deadline.at_most(self._cluster.options.request_timeout)
        try:
            connection = self._connect(quick)
            return self._cluster.topics_from(connection, names, quick, with_permissions=with_permissions)
        except CALL_ERRORS as error:
            return self._failed(error)

    def connect_to_known(self, deadline: Deadline) -> RequestFailed | None:
        """Connects to the coordinator if it is the broker that knows the member's generation; ``None`` if so."""
        failure = self.connect(deadline)
        if failure is not None:
            return failure
        if self._broker_id == self._current.knows_generation:
            return None
        found = self._broker_id
        self.rediscover()
        return RequestFailed(ErrorAction.REDISCOVER, f"broker {found} has not confirmed the member's generation yet")

    def confirm_generation(self) -> None:
        """Notes that the broker of the last request knows the member in its current generation."""
        self._current.knows_generation = self._broker_id
        self._current.permission.record_granted()

    def _find(self, deadline: Deadline) -> None:
        self._has_looked_up = True
        self._current.broker = self._cluster.find_coordinator(self._group_id, deadline)
        self._broker_id = self._current.id

    def find_coordinator(self, deadline: Deadline) -> RequestFailed | None:
        """Finds the coordinator now; ``None`` if that succeeded.

        Raises:
            Interrupted: the deadline's wakeup was set.
        """
        return self._failure_of(lambda: self._find(deadline))

    def _failed(self, error: GroupSourceError) -> RequestFailed:
        if isinstance(error, GroupError):
            return self._rejected(str(error), error)
        if isinstance(error, AuthenticationFailed):
            return RequestFailed.final(error)
        self.rediscover()
        return RequestFailed(ErrorAction.REDISCOVER, str(error))

    def failure(
        self,
        request: str,
        error_code: int,
        member_id: str = "",
        topics: Collection[str] = (),
        broker_message: str | None = None,
    ) -> RequestFailed:
        """Turns the error code of a response into a failure.

        ``topics`` are the topics of the request, ``broker_message`` the broker's explanation, both for a fatal error.
        """
        action = error_action(error_code)
        if action is ErrorAction.REDISCOVER:
            self.rediscover()
        reason = f"{request} failed with {describe_error_code(error_code)}{_HINTS.get(error_code, '')}"
        if action is ErrorAction.FATAL:
            return self._rejected(reason, fatal(request, self._group_id, error_code, topics, broker_message))
        return RequestFailed(action, reason, member_id)

    def _rejected(self, reason: str, error: GroupError) -> RequestFailed:
        """A failure that is fatal, unless a permission is missing that this query had before."""
        if error.error_code in _MISSING_PERMISSION:
            try:
                self._current.permission.record_denied(error)
            except GroupError as final:
                return RequestFailed.final(final)
            return RequestFailed(ErrorAction.REDISCOVER, reason)
        return RequestFailed(ErrorAction.FATAL, reason, error=error)


def retry_until_response(
    request: Callable[[], Result | RequestFailed], deadline: Deadline, backoff: float
) -> Result | RequestFailed:
    """Retries a request, ``backoff`` seconds apart, until it succeeds; returns the last failure at the deadline.

    Raises:
        GroupSourceError: a retry cannot help.
    """
    while True:
        result = request()
        if not isinstance(result, RequestFailed):
            return result
        if result.error is not None:
            raise result.error
        # A request that the deadline cut short would explain less than this failure.
        if deadline.remaining() <= backoff + MIN_BROKER_TIMEOUT:
            return result
        time.sleep(backoff)
