"""The interface of a group protocol for its member: requests that return what happened.

The member's thread calls a protocol, and a protocol never calls its member: :meth:`GroupProtocol.send` returns an
:class:`Outcome`, whose events the member applies to the state machine of the protocol. One case cannot wait for the
outcome: a classic member sends heartbeats while the coordinator holds back its JoinGroup or SyncGroup for minutes. The
events of these heartbeats are applied at once, by the function that the member passes along (:data:`Apply`).
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from spark_group_source.clock import Backoff, Clock, Deadline, Wakeup
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.heartbeat_schedule import HeartbeatSchedule
from spark_group_source.group.membership import Action, AnyMember, Event, Membership, Request, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.text import printable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)


StateMachine = Callable[[Any, Event, float, float], tuple[Any, list[Action]]]
"""The function ``step`` of a group protocol: it takes the membership, an event, the time, and the revocation timeout in
seconds; it returns the membership after the event, and the actions to perform."""

Apply = Callable[[Event], Membership]
"""Applies an event at once, and returns the membership after it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a request, in order: first the ``events``, of which the last is the coordinator's answer if it
    accepted the request, and then the ``failure`` if it did not."""

    events: tuple[Event, ...] = ()
    failure: RequestFailed | None = None


@dataclass(frozen=True, slots=True)
class MemberContext:
    """The parts of a member that its protocol uses. ``wakeup`` ends every wait once the query ends."""

    cluster: Cluster
    settings: GroupSettings
    clock: Clock
    wakeup: Wakeup | None = None
    timings: Timings | None = None


LEAVE_TIMEOUT = 3.0
"""Maximum seconds to leave the group, with retries, because Spark kills the process some seconds after asking it to
end."""

LEAVE_ATTEMPT_TIMEOUT = 1.0
"""Maximum seconds for one attempt to leave. If a request is lost on a dead connection, there is time for another."""

START_POSITIONS_PART = 0.5
"""Maximum fraction of the session timeout for finding start positions on the member's thread, which sends no heartbeat
meanwhile. The rest is left for the next heartbeat."""


class GroupProtocol(ABC, Generic[AnyMember]):
    """The base of both group protocols. All methods but :meth:`subscribe` are for the member's thread.

    A membership begins as ``initial`` with the request ``first``, and ``state_machine`` applies events to it.
    ``client`` sends the requests of the membership. ``next_topic_check`` is when a check of the topics is due, in
    seconds of the clock. ``me`` is always the membership at the time of the call.
    """

    state_machine: StateMachine
    first: ClassVar[Request]
    client: CoordinatorClient
    next_topic_check = math.inf

    def __init__(self, context: MemberContext, initial: AnyMember, heartbeat_interval: float) -> None:
        """``heartbeat_interval`` is in seconds."""
        self.initial = initial
        self.settings = context.settings
        self.clock = context.clock
        self.wakeup = context.wakeup
        self.heartbeats = HeartbeatSchedule(context.settings, heartbeat_interval, context.clock, context.wakeup)

    @abstractmethod
    def subscribe(self, topics: Mapping[str, Topic]) -> Event | None:
        """Sets the topics of the first join, as they are at the start. Caller: the query's thread, before the member's
        thread starts."""

    @abstractmethod
    def is_join(self, request: Action, me: AnyMember) -> bool:
        """Whether the request joins the group: then a backoff may be due before it."""

    @abstractmethod
    def send(self, request: Action, me: AnyMember, apply: Apply) -> Outcome:
        """Sends a heartbeat or another request of this protocol's state machine, and waits for the answer."""

    @abstractmethod
    def note_answer(self, answer: Event, before: AnyMember, after: AnyMember) -> bool:
        """Logs the changes by an answer that has been applied. Returns whether the query gets an assignment by the
        answer."""

    @abstractmethod
    def check_topics(self, me: AnyMember) -> Event | None:
        """Checks whether the subscription matches other topics or partitions; ``None`` if nothing has changed."""

    @abstractmethod
    def leave(self, me: AnyMember, cluster: Cluster | None = None) -> None:
        """Leaves the group, over ``cluster`` instead of the member's own connections if the member is blocked."""

    def notified(self, joined: bool) -> Event | None:
        """Does work for which the query need not wait, after the query was notified of the assignment.

        Args:
            joined: the answer has completed a join.

        Returns:
            The event that follows from this work; ``None`` if there is none.
        """
        return None

    def rediscover(self) -> None:
        """Finds the coordinator again before the next request."""
        self.client.rediscover()

    def within(self, seconds: float) -> Deadline:
        """A deadline that ends with the query."""
        return Deadline.after(seconds, self.clock, self.wakeup)

    def start_positions_deadline(self) -> Deadline:
        """The deadline of a listener that finds start positions. No heartbeat is sent before the listener returns."""
        return self.within(self.settings.session_timeout * START_POSITIONS_PART)

    def retry_leave(self, member_id: str, send: Callable[[Deadline], RequestFailed | None]) -> None:
        """Sends a request that leaves the group, and logs the result; retries errors that may pass."""
        group_id = self.settings.group_id
        failure = self._failure_to_leave(send)
        if failure is None:
            log.info("group %s: member %s left", group_id, printable(member_id))
            return
        log.warning(
            "group %s: member %s could not leave and stays until its session times out: %s",
            group_id,
            printable(member_id),
            failure.reason,
        )

    def _failure_to_leave(self, send: Callable[[Deadline], RequestFailed | None]) -> RequestFailed | None:
        """Sends a request that leaves the group until it succeeds; returns the last failure if it never does."""
        deadline = Deadline.after(LEAVE_TIMEOUT, self.clock)
        backoff = Backoff(self.settings.wire.retry_backoff, self.settings.wire.retry_backoff_max)
        while True:
            failure = send(deadline.at_most(LEAVE_ATTEMPT_TIMEOUT))
            if failure is None:
                return None
            if failure.action in (ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID):
                return None  # the coordinator no longer has the member
            seconds = backoff.next()
            if failure.action not in (ErrorAction.RETRY, ErrorAction.REDISCOVER):
                return failure
            if deadline.remaining() <= seconds:
                return failure
            sleep(seconds, deadline)
