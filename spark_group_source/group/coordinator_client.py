"""The way to the broker that coordinates a group, and what it means where that does not answer or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import describe
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    ProtocolError,
)
from spark_group_source.group.counters import Timings
from spark_group_source.group.error_actions import ErrorAction, error_action, fatal
from spark_group_source.group.events import RequestFailed
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.wakeup import Interrupted

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Watch:
    """What a member does while it waits for an answer that may take minutes: it makes sure that the wait has a sense.

    ``check`` is called ``every`` so many seconds. Once it returns a refusal, the answer has as long to arrive again,
    since it may be on its way; then the refusal is the answer.
    """

    check: Callable[[], RequestFailed | None]
    every: float

    def until(self, connection: Connection, deadline: Deadline) -> RequestFailed | None:
        """Waits until the answer begins to arrive, or the deadline has come: ``None``; or the wait has no sense."""
        refused: RequestFailed | None = None
        while not connection.wait_for_response(deadline.at_most(self.every)):
            if refused is not None or deadline.expired():
                return refused
            refused = self.check()
        return None


class CoordinatorClient:
    """Requests to a group's coordinator over one thread's cluster; who coordinates is asked for where it is not known.

    Each purpose has a connection of its own: a JoinGroup that waits at the broker would hold up everything behind it.
    """

    def __init__(self, cluster: Cluster, group_id: str, purpose: str, timings: Timings | None = None) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._purpose = purpose
        self._timings = timings or Timings()
        self._broker_id: int | None = None

    def rediscover(self) -> None:
        """The next request asks first who the coordinator is."""
        self._broker_id = None

    @property
    def broker_id(self) -> int | None:
        """The coordinator as far as it is known."""
        return self._broker_id

    def call(self, request: Any, deadline: Deadline, watch: Watch | None = None) -> Any:
        """The broker's answer, or :class:`RequestFailed` where none came.

        Only the answer may take until the deadline: the coordinator is found and reached within a request's timeout.

        Args:
            watch: what to do now and then while the answer is waited for.

        Raises:
            Interrupted: the deadline's wakeup was set; the request is pending at the broker, and the connection is
                closed.
        """
        try:
            quick = deadline.at_most(self._cluster.options.request_timeout)
            if self._broker_id is None:
                self._broker_id = self._cluster.find_coordinator(self._group_id, quick).id
            connection = self._cluster.connection(self._broker_id, quick, self._purpose)
            began = deadline.clock()
            connection.send(request, quick)
            try:
                refused = None if watch is None else watch.until(connection, deadline)
                answer = connection.receive(deadline) if refused is None else refused
            except Interrupted:
                # The answer is still to come: it must not be taken for that of the next request.
                connection.close()
                raise
            if refused is not None:
                connection.close()
            else:
                self._timings.answered(request.name, deadline.clock() - began)
            return answer
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            self.rediscover()
            return RequestFailed(ErrorAction.REDISCOVER, str(error))
        except (GroupError, AuthenticationFailed) as error:
            return RequestFailed(ErrorAction.FATAL, str(error), error=error)

    def refused(self, request: str, errno: int, member_id: str = "", topics: Collection[str] = ()) -> RequestFailed:
        """What the error code of an answer means; ``topics`` are those it is about."""
        ruling = error_action(errno)
        if ruling is ErrorAction.REDISCOVER:
            self.rediscover()
        error = fatal(request, self._group_id, errno, topics) if ruling is ErrorAction.FATAL else None
        return RequestFailed(ruling, f"{request} was answered with {describe(errno)}", member_id, error)


def until_answered(
    ask: Callable[[], Answer | RequestFailed], deadline: Deadline, pause: float
) -> Answer | RequestFailed:
    """Asks a coordinator, ``pause`` seconds apart, until it answers: trouble that may heal is waited for.

    Returns the last refusal where nothing else came by the deadline.

    Raises:
        GroupSourceError: it refuses for good.
    """
    while True:
        answer = ask()
        if not isinstance(answer, RequestFailed):
            return answer
        if answer.error is not None:
            raise answer.error
        if deadline.remaining() <= pause:
            return answer
        time.sleep(pause)
