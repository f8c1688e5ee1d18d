"""The way to the broker that coordinates a group, and what it means where that does not answer or refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
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
from spark_group_source.group.events import Refused
from spark_group_source.group.verdicts import Verdict, fatal, verdict
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.interrupt import Interrupt, Interrupted

Answer = TypeVar("Answer")


class Channel:
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

    def call(self, request: Any, deadline: Deadline, interrupt: Interrupt | None = None) -> Any:
        """The broker's answer, or :class:`Refused` where none came.

        Raises:
            Interrupted: ``interrupt`` was set; the request is pending at the broker, and the connection is closed.
        """
        try:
            if self._broker_id is None:
                self._broker_id = self._cluster.coordinator(self._group_id, deadline).id
            connection = self._cluster.connection(self._broker_id, deadline, self._purpose)
            began = deadline.clock()
            connection.send(request, deadline)
            try:
                answer = connection.receive(deadline, interrupt)
            except Interrupted:
                # The answer is still to come: it must not be taken for that of the next request.
                connection.close()
                raise
            self._timings.answered(request.name, deadline.clock() - began)
            return answer
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            self.rediscover()
            return Refused(Verdict.REDISCOVER, str(error))
        except (GroupError, AuthenticationFailed) as error:
            return Refused(Verdict.FATAL, str(error), error=error)

    def refused(self, request: str, errno: int, member_id: str = "", topics: Collection[str] = ()) -> Refused:
        """What the error code of an answer means; ``topics`` are those it is about."""
        ruling = verdict(errno)
        if ruling is Verdict.REDISCOVER:
            self.rediscover()
        error = fatal(request, self._group_id, errno, topics) if ruling is Verdict.FATAL else None
        return Refused(ruling, f"{request} was answered with {describe(errno)}", member_id, error)


def until_answered(ask: Callable[[], Answer | Refused], deadline: Deadline, pause: float) -> Answer | Refused:
    """Asks a coordinator, ``pause`` seconds apart, until it answers: trouble that may heal is waited for.

    Returns the last refusal where nothing else came by the deadline.

    Raises:
        GroupSourceError: it refuses for good.
    """
    while True:
        answer = ask()
        if not isinstance(answer, Refused):
            return answer
        if answer.error is not None:
            raise answer.error
        if deadline.remaining() <= pause:
            return answer
        time.sleep(pause)
