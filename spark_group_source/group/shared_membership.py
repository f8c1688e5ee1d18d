"""The membership and its pending actions, shared by the member's thread and the query's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from spark_group_source.clock import Clock, Deadline
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import (
    Action,
    BatchCompleted,
    BatchPlanned,
    CommitsChanged,
    Event,
    Notification,
    Request,
    RequestFailed,
    SessionExtended,
    Tick,
)
from spark_group_source.group.membership import Membership, Phase
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import Partitions

State = TypeVar("State", bound=Membership)

Handshake = Callable[[State, Event, float, float], tuple[State, list[Action]]]
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
        handshake: Handshake[State],
        start: State,
        first: Request,
        uncommitted: Callable[[], Partitions],
    ) -> None:
        """``start`` is the membership before its first request, ``first``. ``uncommitted`` are the partitions with
        pending commits: it is called under the lock, so that the last answer is the newest."""
        self._uncommitted = uncommitted
        self._handshake = handshake
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
        self._state, actions = self._handshake(before, event, self._clock(), self._settings.revocation_timeout)
        if self._state is before and not actions:
            return
        if self._state.phase is Phase.FAILED or any(isinstance(action, Request) for action in actions):
            # A request of the previous phase is obsolete in the next one. After a failure, a join would create a member
            # that no process represents.
            self._actions = deque(each for each in self._actions if isinstance(each, Notification))
        self._actions.extend(actions)
        self._changed.notify_all()
