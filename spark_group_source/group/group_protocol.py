"""The group protocol of one member: sends the requests of its handshake, and notifies the listener.

This is the part that both protocols have: backoffs, notifications, and leaving.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from spark_group_source.clock import Backoff, Clock, Deadline, Wakeup
from spark_group_source.group.error_actions import MAY_HEAL, ErrorAction
from spark_group_source.group.events import Action, Assigned, AwaitBackoff, Lost, RequestFailed, Revoked
from spark_group_source.group.heartbeat_schedule import HeartbeatSchedule
from spark_group_source.group.heartbeat_state import HeartbeatState
from spark_group_source.group.join_backoff import JoinBackoff
from spark_group_source.group.membership import Phase
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)

LEAVE_TIMEOUT = 3.0
"""Seconds to leave the group, with retries: Spark kills the process some seconds after it asked it to end."""

LEAVE_ATTEMPT_TIMEOUT = 1.0
"""Seconds for one of these tries: a request that is lost on a dead connection leaves time for another one."""

START_POSITIONS_PART = 0.5
"""Part of the session timeout for finding start positions on the member's thread, which sends no heartbeat meanwhile.
The other part is left for the next heartbeat."""


class GroupProtocol(ABC):
    """The base of both group protocols. All methods but :meth:`subscribe` are for the member's thread."""

    shared: SharedMembership[Any]

    def __init__(
        self,
        settings: GroupSettings,
        heartbeat_interval: float,
        listener: RebalanceListener,
        clock: Clock,
        wakeup: Wakeup | None,
    ) -> None:
        """``wakeup`` ends every wait once the query ends. ``heartbeat_interval`` is in seconds."""
        self.settings = settings
        self.listener = listener
        self.clock = clock
        self.wakeup = wakeup
        self.heartbeat_state = HeartbeatState(settings, clock)
        self.join_backoff = JoinBackoff(settings, clock, wakeup)
        self.schedule = HeartbeatSchedule(heartbeat_interval, clock)
        self._was_member = False

    @abstractmethod
    def subscribe(self, topics: Collection[str]) -> None:
        """Sets the topics of the first join. Caller: the query, before the member's thread starts."""

    @abstractmethod
    def send(self, request: Action) -> None:
        """Performs an action of the protocol's own handshake, and reports its result to the membership."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Sends a heartbeat if one is due, and checks topics after its success; then retries what is due."""

    @abstractmethod
    def rediscover(self) -> None:
        """Finds the coordinator again before the next request."""

    @abstractmethod
    def leave(self, cluster: Cluster | None = None) -> None:
        """Leaves the group, over ``cluster`` instead of the member's own connections if the member is blocked."""

    def perform(self, action: Action) -> None:
        """Performs one action of the membership."""
        match action:
            case AwaitBackoff(rediscover):
                self._await_backoff(rediscover)
            case Assigned(partitions):
                self.listener.partitions_assigned(partitions, self.shared.membership, self.start_positions_deadline())
            case Revoked(partitions, in_flight, uncommitted):
                self.listener.partitions_revoked(partitions, in_flight, uncommitted)
            case Lost(partitions, reason):
                self.listener.partitions_lost(partitions, reason)
            case _:
                self.send(action)

    def retry_due(self) -> float:
        """When :meth:`retry` has something to do, in seconds of the clock."""
        me = self.shared.membership
        return self.listener.retry_due(me) if me.phase in (Phase.STABLE, Phase.REVOKING) else math.inf

    def retry(self) -> None:
        """Retries failed commits and start positions if that is due, also while a revocation waits for a commit."""
        if self.clock() >= self.retry_due():
            self.listener.retry(self.shared.membership, self.start_positions_deadline())

    def assignment_received(self) -> None:
        """Notifies the listener of a new assignment; then the query may know that it has one."""
        self._was_member = True
        self.listener.rebalance_completed()
        while notification := self.shared.next_notification():  # before note_assignment: the query needs the positions
            self.perform(notification)
        self.shared.note_assignment()

    def request_failed(self, failure: RequestFailed) -> None:
        """Logs a failure and reports it to the membership.

        A query that was in the group before retries the errors that brokers or other members can heal.
        """
        errno = getattr(failure.error, "errno", None)
        if self._was_member and errno in MAY_HEAL:
            failure = RequestFailed(ErrorAction.REDISCOVER, failure.reason)
        self.heartbeat_state.log_failure(failure)
        self.shared.post(failure)

    def within(self, seconds: float) -> Deadline:
        """A deadline that ends with the query."""
        return Deadline.after(seconds, self.clock, self.wakeup)

    def start_positions_deadline(self) -> Deadline:
        """The deadline of a listener that finds start positions: heartbeats wait for it."""
        return self.within(self.settings.session_timeout * START_POSITIONS_PART)

    def retry_leave(self, send: Callable[[Deadline], RequestFailed | None]) -> None:
        """Sends a request that leaves the group, and logs the result; retries errors that may pass."""
        group_id, member_id = self.settings.group_id, self.shared.membership.member_id
        deadline = Deadline.after(LEAVE_TIMEOUT, self.clock)
        backoff = Backoff(self.settings.retry_backoff, self.settings.retry_backoff_max)
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

    def _await_backoff(self, rediscover: bool) -> None:
        if rediscover:
            self.rediscover()
        seconds = self.heartbeat_state.next_backoff()
        sleep(seconds, self.within(seconds))
        self.join_backoff.skip()
        self.schedule.schedule_now()
