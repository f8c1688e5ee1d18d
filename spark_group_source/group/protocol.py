"""The part of a member that both group protocols have: when a heartbeat is due and what follows if it fails, backoffs,
notifications, leaving, and the membership with its pending actions, which the member's thread and the query's
thread share.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from spark_group_source.clock import WARN_EVERY, Backoff, Clock, Deadline, LogEvery, Wakeup
from spark_group_source.group.membership import (
    MAY_HEAL,
    Action,
    Assigned,
    AwaitBackoff,
    BatchCompleted,
    BatchPlanned,
    CommitsChanged,
    ErrorAction,
    Event,
    Lost,
    Membership,
    Notification,
    Phase,
    Request,
    RequestFailed,
    Revoked,
    SessionExtended,
    Tick,
)
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)


class HeartbeatSchedule:
    """One member's heartbeats, ``interval`` seconds apart. All methods are for the member's thread.

    ``next_heartbeat`` is when the next one is due, in seconds of the clock.
    """

    def __init__(self, interval: float, clock: Clock) -> None:
        self.interval = interval
        self.next_heartbeat = 0.0
        self._clock = clock

    def try_acquire(self, throttled: float) -> bool:
        """Whether a heartbeat is due; then the caller sends it, and the next is due after the interval.

        While the broker throttles this client, for ``throttled`` seconds, it reads no request: the heartbeat is due
        when that time ends.
        """
        if self._clock() < self.next_heartbeat:
            return False
        if throttled:
            self.next_heartbeat = self._clock() + throttled
            return False
        self.schedule_next()
        return True

    def schedule_next(self) -> None:
        """The next heartbeat is due after the interval."""
        self.next_heartbeat = self._clock() + self.interval

    def schedule_within(self, seconds: float) -> None:
        """The next heartbeat is due after at most so many seconds."""
        self.next_heartbeat = min(self.next_heartbeat, self._clock() + seconds)

    def schedule_now(self) -> None:
        """The next heartbeat is due at once."""
        self.next_heartbeat = self._clock()


class HeartbeatState:
    """When a request of one member last succeeded, and how it retries. Written by the member's thread alone."""

    def __init__(self, settings: GroupSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._warnings = LogEvery(WARN_EVERY, clock)
        self._backoff = Backoff(settings.wire.retry_backoff, settings.wire.retry_backoff_max)
        self.record_success()

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the response to the last successful heartbeat or SyncGroup. Caller: anybody.

        A heartbeat also succeeds with REBALANCE_IN_PROGRESS while a revocation is pending.
        """
        return self._clock() - self._succeeded_at

    def record_success(self) -> None:
        """A heartbeat or SyncGroup succeeded."""
        self._succeeded_at = self._clock()
        self._logged_action: ErrorAction | None = None
        self._warnings.restart()
        self._backoff.reset()

    def log_failure(self, failure: RequestFailed) -> None:
        """Logs each kind of failure once, and a warning each minute without success.

        An error that leads to a join at once is logged with DEBUG: the line on the join has the reason.
        """
        quiet = failure.action in (ErrorAction.MEMBER_ID_REQUIRED, ErrorAction.REJOIN, self._logged_action)
        self._logged_action = failure.action
        log.log(logging.DEBUG if quiet else logging.INFO, "group %s: %s", self._settings.group_id, failure.reason)
        if self._warnings.try_acquire():
            log.warning(
                "group %s: no successful heartbeat for %.0f s, still retrying: %s",
                self._settings.group_id,
                self.time_since_heartbeat,
                failure.reason,
            )

    def next_backoff(self) -> float:
        """Seconds to wait before the next request; they double with each retry until one succeeds."""
        return self._backoff.next()


class RebalanceListener(Protocol):
    """The member's thread calls these methods in the order of events; :meth:`uncommitted` is for any thread."""

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline) -> None:
        """These are owned from now on. The call delays heartbeats: it must return by the deadline."""

    def join_started(self) -> None:
        """This member sends JoinGroup."""

    def rebalance_completed(self) -> None:
        """This member is in a new generation, and knows its assignment."""

    def uncommitted(self) -> Partitions:
        """Partitions with pending commits or starts, for which a revocation waits. It must return at once."""

    def retry_due(self, me: Membership) -> float:
        """When :meth:`retry` is to be called, in seconds of the clock; infinity if there is nothing to retry."""

    def retry_commits_and_starts(self, me: Membership, deadline: Deadline) -> None:
        """Retries failed commits and lookups of start positions. The call delays heartbeats: it must return by the
        deadline, and by that of a pending revocation."""

    def partitions_revoked(self, partitions: Partitions, in_flight: Partitions, uncommitted: Partitions) -> None:
        """These are revoked. The batch that reads ``in_flight`` ones did not end in time; what was completed of
        ``uncommitted`` ones could not be committed in time."""

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """These are lost: none of their offsets may be committed."""


State = TypeVar("State", bound=Membership)

StateMachine = Callable[[State, Event, float, float], tuple[State, list[Action]]]
"""The function ``step`` of a group protocol; it takes the time and the revocation timeout, in seconds."""


class SharedMembership(Generic[State]):
    """Takes events from both threads, and queues actions for the member's thread.

    The condition ``_changed`` guards every attribute: the state, the actions, and ``_has_assignment``, whether the
    first assignment and its start positions are known. No method waits for anything but that condition.
    """

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        state_machine: StateMachine[State],
        start: State,
        first: Request,
        uncommitted: Callable[[], Partitions],
    ) -> None:
        """``start`` is the membership before its first request, ``first``. ``uncommitted`` are the partitions with
        pending commits: it is called under the lock, so that the last answer is the newest."""
        self._uncommitted = uncommitted
        self._state_machine = state_machine
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._state = start
        self._actions: deque[Action] = deque([first])
        self._has_assignment = False

    @property
    def membership(self) -> State:
        """The membership after the last event. Caller: the member's thread."""
        return self._state

    def snapshot(self) -> State:
        """The membership as it is now. Caller: anybody.

        Checks the session timeout too, because a user's own code may block the member's thread.

        Raises:
            GroupSourceError: the membership failed.
        """
        with self._changed:
            self._apply(Tick())
            if self._state.error is not None:
                raise self._state.error
            return self._state

    def await_assignment(self, deadline: Deadline) -> bool:
        """Waits for the first assignment and its start positions, or for the end of the membership.

        Returns whether the start positions are known. Caller: the query.

        Raises:
            GroupSourceError: the membership failed.
        """
        with self._changed:
            while not self._has_assignment and not self._state.ended and not deadline.expired():
                self._changed.wait(deadline.remaining())
        self.snapshot()
        return self._has_assignment

    def note_assignment(self) -> None:
        """The first assignment has its start positions. Caller: the member's thread."""
        with self._changed:
            self._has_assignment = True
            self._changed.notify_all()

    def plan(self, partitions: Partitions, me: Membership) -> Partitions:
        """Registers a batch that will read ``partitions``; returns those that are still readable.

        Caller: the query.
        """
        with self._changed:
            self._apply(Tick())
            readable = self._state.readable
            allowed = frozenset(tp for tp in partitions if tp in readable and readable[tp] == me.owned.get(tp))
            self._apply(BatchPlanned(allowed))
            return allowed

    def batch_completed(self) -> None:
        """The batch is completed. Caller: the query."""
        with self._changed:
            self._apply(BatchCompleted(self._uncommitted()))

    def commits_changed(self) -> None:
        """Commits succeeded, or became due. Caller: both threads."""
        with self._changed:
            self._apply(CommitsChanged(self._uncommitted()))

    def commit_rejected(self, me: Membership, failure: RequestFailed) -> None:
        """The coordinator rejected a commit of ``me``, because it does not know that member or generation any more.

        If the membership still has that generation, everything owned is lost. While a join is pending, the generation
        may have ended because all members joined: the response to the join decides. Caller: both threads.
        """
        with self._changed:
            now = self._state
            decided = now.phase in (Phase.STABLE, Phase.REVOKING) or failure.action is ErrorAction.RESET_MEMBER_ID
            if decided and (now.member_id, now.generation) == (me.member_id, me.generation) and now.owned:
                # Keeps the member id: if the coordinator does not know it, the join fails with that error.
                self._apply(replace(failure, action=ErrorAction.RESET_GENERATION))

    def await_other_generation(self, me: Membership, deadline: Deadline) -> State | None:
        """Waits until the member has another generation than ``me``, and returns it; ``None`` if it has none in time.

        Caller: both threads; the member's thread with a deadline that has passed.
        """
        with self._changed:
            while self._state.generation == me.generation and not self._state.ended and not deadline.expired():
                self._changed.wait(deadline.remaining())
            return None if self._state.ended or self._state.generation == me.generation else self._state

    def post(self, event: Event) -> None:
        """Applies an event. Caller: anybody."""
        with self._changed:
            self._apply(event)

    def next_action(self, next_heartbeat: float) -> tuple[Action | None, bool]:
        """Waits for an action until a heartbeat or timeout is due; returns it, and whether the membership has ended.

        Caller: the member's thread.
        """
        with self._changed:
            ended = self._state.ended
            if not self._actions and not ended:
                self._changed.wait(self._idle_time(next_heartbeat))
            action = self._actions.popleft() if self._actions else None
            return action, ended and action is None

    def next_notification(self) -> Notification | None:
        """Takes the next action if it notifies the listener. Caller: the member's thread."""
        with self._changed:
            first = self._actions[0] if self._actions else None
            if not isinstance(first, Notification):
                return None
            self._actions.popleft()
            return first

    def _idle_time(self, next_heartbeat: float) -> float:
        until = next_heartbeat
        if self._state.phase is Phase.REVOKING:
            until = min(until, self._state.revoke_by)
        if self._state.owned:
            until = min(until, self._state.session_ends)
        return max(0.0, until - self._clock())

    def _apply(self, event: Event) -> None:
        """Applies one event; the caller holds the lock."""
        # A success extends the session before the clock is checked.
        events = (event, Tick()) if isinstance(event, SessionExtended) else (Tick(), event)
        for next_event in events:
            self._step(next_event)

    def _step(self, event: Event) -> None:
        before = self._state
        self._state, actions = self._state_machine(before, event, self._clock(), self._settings.revocation_timeout)
        if self._state is before and not actions:
            return
        if self._state.phase is Phase.FAILED or any(isinstance(action, Request) for action in actions):
            # A request of the previous phase is obsolete in the next one. After a failure, a join would create a member
            # that no process represents.
            self._actions = deque(each for each in self._actions if isinstance(each, Notification))
        self._actions.extend(actions)
        self._changed.notify_all()


PROMPT_JOINS = 4
"""Joins in a row, without a successful heartbeat, that need no backoff: a new member of the classic protocol needs two,
and a revocation two more. Without this limit, a coordinator that contradicts itself would get thousands a second."""


class JoinBackoff:
    """The joins in a row of one member. All methods are for the member's thread."""

    def __init__(self, settings: GroupSettings, clock: Clock, wakeup: Wakeup | None) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self._clock = clock
        self._wakeup = wakeup
        self._backoff = Backoff(settings.wire.retry_backoff, settings.wire.retry_backoff_max)
        self._skip = False

    def wait(self) -> None:
        """Waits before a join, if it is not one of the first."""
        seconds = self._backoff.next()
        if self._backoff.failures > PROMPT_JOINS and not self._skip:
            sleep(seconds, Deadline.after(seconds, self._clock, self._wakeup))
        self._skip = False

    def skip(self) -> None:
        """The next join needs no backoff: the member has just waited for the backoff of a failed request."""
        self._skip = True

    def reset(self) -> None:
        """A heartbeat succeeded: the next joins need no backoff."""
        self._backoff.reset()


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
        """Performs an action of the protocol's own state machine, and reports its result to the membership."""

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

    def retry_commits_and_starts(self) -> None:
        """Retries failed commits and start positions if that is due, also while a revocation waits for a commit."""
        if self.clock() >= self.retry_due():
            self.listener.retry_commits_and_starts(self.shared.membership, self.start_positions_deadline())

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
        error_code = getattr(failure.error, "error_code", None)
        if self._was_member and error_code in MAY_HEAL:
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

    def _await_backoff(self, rediscover: bool) -> None:
        if rediscover:
            self.rediscover()
        seconds = self.heartbeat_state.next_backoff()
        sleep(seconds, self.within(seconds))
        self.join_backoff.skip()
        self.schedule.schedule_now()
