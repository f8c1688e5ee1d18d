"""The part of a member that both group protocols have: when a heartbeat is due and what follows if it fails, backoffs,
notifications and leaving.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from spark_group_source.clock import Backoff, Clock, Deadline, Wakeup
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.error_actions import MAY_HEAL, ErrorAction
from spark_group_source.group.heartbeats import Heartbeats
from spark_group_source.group.membership import (
    Action,
    Assigned,
    AwaitBackoff,
    Event,
    Lost,
    Membership,
    Phase,
    Request,
    RequestFailed,
    Revoked,
    Tick,
)
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.rejection import LOOKUP_TIMEOUT, explain
from spark_group_source.group.settings import GroupSettings
from spark_group_source.text import printable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.waiting import sleep

if TYPE_CHECKING:
    from spark_group_source.group.member import Member

log = logging.getLogger(__name__)


StateMachine = Callable[[Any, Event, float, float], tuple[Any, list[Action]]]
"""The function ``step`` of a group protocol: it takes the membership, an event, the time, and the revocation timeout in
seconds; it returns the membership after the event, and the actions to perform."""


LEAVE_TIMEOUT = 3.0
"""Seconds to leave the group, with retries: Spark kills the process some seconds after it asked it to end."""

LEAVE_ATTEMPT_TIMEOUT = 1.0
"""Seconds for one of these tries: a request that is lost on a dead connection leaves time for another one."""

START_POSITIONS_PART = 0.5
"""Part of the session timeout for finding start positions on the member's thread, which sends no heartbeat meanwhile.
The other part is left for the next heartbeat."""


class GroupProtocol(ABC):
    """The base of both group protocols. All methods but :meth:`subscribe` are for the member's thread.

    ``state_machine`` begins with ``initial`` and the action ``first``. ``member`` has the state; the listener is set
    before its thread starts. ``client`` sends the requests of the membership. ``next_topic_check`` is when a check of
    the topics is due, in seconds of the clock.
    """

    state_machine: StateMachine
    first: ClassVar[Request]
    listener: RebalanceListener
    client: CoordinatorClient
    next_topic_check = math.inf

    def __init__(
        self,
        member: Member,
        initial: Membership,
        settings: GroupSettings,
        heartbeat_interval: float,
        clock: Clock,
        wakeup: Wakeup | None,
    ) -> None:
        """``wakeup`` ends every wait once the query ends. ``heartbeat_interval`` is in seconds."""
        self.member = member
        self.initial = initial
        self.settings = settings
        self.clock = clock
        self.wakeup = wakeup
        self.heartbeats = Heartbeats(settings, heartbeat_interval, clock, wakeup)
        self._was_member = False
        self._logged_reason = initial.reason

    @abstractmethod
    def subscribe(self, topics: Mapping[str, Topic]) -> None:
        """Sets the topics of the first join, as they are at the start. Caller: the query, before the thread starts."""

    @abstractmethod
    def send(self, request: Action) -> None:
        """Performs an action of the protocol's own state machine, and reports its result to the membership."""

    @abstractmethod
    def heartbeat(self) -> bool:
        """Sends a heartbeat, and reports its result to the membership. Returns False if it failed."""

    @abstractmethod
    def check_topics(self) -> None:
        """Checks whether the subscription matches other topics or partitions."""

    @abstractmethod
    def leave(self, cluster: Cluster | None = None) -> None:
        """Leaves the group, over ``cluster`` instead of the member's own connections if the member is blocked."""

    def rediscover(self) -> None:
        """Finds the coordinator again before the next request."""
        self.client.rediscover()

    def keep_alive(self) -> None:
        """Sends a heartbeat if one is due, and checks topics after its success; then retries what is due."""
        self.member.post(Tick())
        if self.member.membership.phase not in (Phase.STABLE, Phase.REVOKING):
            return
        if self.heartbeats.try_acquire(self.client.throttled):
            if not self.heartbeat():
                return
            stable = self.member.membership.phase is Phase.STABLE  # a revocation has a deadline
            if stable and self.clock() >= self.next_topic_check:
                self.check_topics()
                return
        self.retry_pending()

    def perform(self, action: Action) -> None:
        """Performs one action of the membership."""
        match action:
            case AwaitBackoff(rediscover):
                if rediscover:
                    self.rediscover()
                self.heartbeats.await_retry()
            case Assigned(partitions):
                self.listener.partitions_assigned(partitions, self.member.membership, self.start_positions_deadline())
            case Revoked(partitions):
                self.listener.partitions_revoked(partitions)
            case Lost(partitions, reason):
                self.listener.partitions_lost(partitions, reason)
            case _:
                self.send(action)

    def retry_due(self) -> float:
        """When :meth:`retry_pending` has something to do, in seconds of the clock."""
        me = self.member.membership
        return self.listener.retry_due(me) if me.phase in (Phase.STABLE, Phase.REVOKING) else math.inf

    def retry_pending(self) -> None:
        """Retries failed commits and start positions if that is due, also while a revocation waits for a commit."""
        if self.clock() >= self.retry_due():
            self.listener.retry_pending(self.member.membership, self.start_positions_deadline())

    def begin_join(self) -> None:
        """Waits for the backoff of a join, and logs its reason, once for joins in a row."""
        self.heartbeats.await_join()
        reason = self.member.membership.reason
        level = logging.DEBUG if reason == self._logged_reason else logging.INFO
        log.log(level, "group %s: joining, because %s", self.settings.group_id, reason)
        self._logged_reason = reason
        self.member.counters.joins += 1

    def assignment_received(self) -> None:
        """Notifies the listener of a new assignment; then the query may know that it has one."""
        self._was_member, self._logged_reason = True, ""
        self.member.counters.rebalances += 1
        self.member.rebalanced_at = self.clock()
        while notification := self.member.next_notification():  # before note_assignment: the query needs the positions
            self.perform(notification)
        self.member.note_assignment()

    def request_failed(self, failure: RequestFailed) -> None:
        """Logs a failure and reports it to the membership.

        A query that was in the group before also retries errors that depend on brokers or other members. One that was
        not owns nothing: its error may wait for a lookup of what the group has.
        """
        error_code = getattr(failure.error, "error_code", None)
        if self._was_member and error_code in MAY_HEAL:
            failure = RequestFailed(ErrorAction.REDISCOVER, failure.reason)
        if not self._was_member:
            failure = explain(failure, self.client, self.settings, self.within(LOOKUP_TIMEOUT))
        self.heartbeats.log_failure(failure)
        self.member.post(failure)

    def within(self, seconds: float) -> Deadline:
        """A deadline that ends with the query."""
        return Deadline.after(seconds, self.clock, self.wakeup)

    def start_positions_deadline(self) -> Deadline:
        """The deadline of a listener that finds start positions: heartbeats wait for it."""
        return self.within(self.settings.session_timeout * START_POSITIONS_PART)

    def retry_leave(self, send: Callable[[Deadline], RequestFailed | None]) -> None:
        """Sends a request that leaves the group, and logs the result; retries errors that may pass."""
        group_id, member_id = self.settings.group_id, printable(self.member.membership.member_id)
        deadline = Deadline.after(LEAVE_TIMEOUT, self.clock)
        backoff = Backoff(self.settings.wire.retry_backoff, self.settings.wire.retry_backoff_max)
        while failure := send(deadline.at_most(LEAVE_ATTEMPT_TIMEOUT)):
            if failure.action in (ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID):
                break  # the coordinator does not have the member any more
            seconds = backoff.next()
            if failure.action not in (ErrorAction.RETRY, ErrorAction.REDISCOVER) or deadline.remaining() <= seconds:
                log.warning(
                    "group %s: member %s could not leave and stays until its session times out: %s",
                    group_id,
                    member_id,
                    failure.reason,
                )
                return
            sleep(seconds, deadline)
        log.info("group %s: member %s left", group_id, member_id)
