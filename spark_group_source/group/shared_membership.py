"""A membership, and what is to be done about it: what the member's thread and the query's thread share."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from spark_group_source.clock import Clock, Deadline
from spark_group_source.group.actions import Action, Assigned, Join, Leave, Lost, Pause, Revoked, Sync
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import BatchPlanned, Event, RequestFailed, SessionExtended, Synced, Tick
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership, Phase, step
from spark_group_source.offsets import Partitions


class SharedMembership:
    """Takes events from both threads, and keeps the actions for the member's.

    The condition ``_changed`` guards everything here: the state, the actions, and whether the first assignment has come
    with its start positions. No method waits for anything but that condition.
    """

    def __init__(self, settings: GroupSettings, clock: Clock, *, cooperative: bool) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._state = Membership(cooperative=cooperative)
        self._todo: deque[Action] = deque([Join()])
        self._settled = False

    @property
    def now(self) -> Membership:
        """The membership as it was last left. Caller: the member's thread."""
        return self._state

    def snapshot(self) -> Membership:
        """The membership as it is now. Caller: anybody.

        Its session is looked at here too: the member's thread may be held up by a user's own code.

        Raises:
            GroupSourceError: the group refused this member for good.
        """
        with self._changed:
            self._apply(Tick())
            if self._state.error is not None:
                raise self._state.error
            return self._state

    def await_settled(self, deadline: Deadline) -> bool:
        """Waits for the first assignment and its start positions; whether they came. Caller: the query.

        Raises:
            GroupSourceError: the group refused this member for good.
        """
        with self._changed:
            while not self._settled and self._state.error is None and not deadline.expired():
                self._changed.wait(deadline.remaining())
        self.snapshot()
        return self._settled

    def settle(self) -> None:
        """The first assignment has its start positions. Caller: the member's thread."""
        with self._changed:
            self._settled = True
            self._changed.notify_all()

    def plan(self, partitions: Partitions, uncommitted: Partitions, me: Membership) -> Partitions:
        """Registers a batch that is to read ``partitions``; returns those it may, which are readable still.

        Caller: the query.
        """
        with self._changed:
            self._apply(Tick())
            readable = self._state.readable
            allowed = frozenset(tp for tp in partitions if tp in readable and readable[tp] == me.owned.get(tp))
            self._apply(BatchPlanned(allowed | uncommitted))
            return allowed

    def commit_refused(self, me: Membership, refused: RequestFailed) -> None:
        """The coordinator refused a commit of ``me`` as it does with those that are no members any more.

        If that is still this member's generation, everything owned is lost. While a join is under way the generation
        may be over because all have joined: its answer decides. Caller: both threads.
        """
        with self._changed:
            now = self._state
            settled = now.phase in (Phase.STABLE, Phase.REVOKING) or refused.action is ErrorAction.RESET_MEMBER_ID
            if settled and (now.member_id, now.generation) == (me.member_id, me.generation) and now.owned:
                # With the id it has: if that is unknown, the join is told so.
                self._apply(replace(refused, action=ErrorAction.RESET_GENERATION))

    def post(self, event: Event) -> None:
        """Takes what happened. Caller: anybody."""
        with self._changed:
            self._apply(event)

    def next_action(self, next_heartbeat: float) -> tuple[Action | None, bool]:
        """The next thing to do, after waiting for one until it is time for something else; and whether all is over.

        Caller: the member's thread.
        """
        with self._changed:
            over = self._state.phase in (Phase.LEFT, Phase.FAILED)
            if not self._todo and not over:
                self._changed.wait(self._idle_time(next_heartbeat))
            action = self._todo.popleft() if self._todo else None
            return action, over and action is None

    def next_news(self) -> Assigned | Revoked | Lost | None:
        """The next thing to tell the listener, if that is what comes next. Caller: the member's thread."""
        with self._changed:
            first = self._todo[0] if self._todo else None
            if not isinstance(first, Assigned | Revoked | Lost):
                return None
            self._todo.popleft()
            return first

    def _idle_time(self, next_heartbeat: float) -> float:
        until = next_heartbeat
        if self._state.phase is Phase.REVOKING:
            until = min(until, self._state.revoke_by)
        if self._state.owned:
            until = min(until, self._state.session_ends)
        return max(0.0, until - self._clock())

    def _apply(self, event: Event) -> None:
        """Takes one event; the caller holds the lock."""
        # What the coordinator has just confirmed goes before the look at the clock.
        steps = (event, Tick()) if isinstance(event, SessionExtended | Synced) else (Tick(), event)
        for each in steps:
            self._step(each)

    def _step(self, event: Event) -> None:
        before = self._state
        self._state, actions = step(before, event, self._clock(), self._settings.revocation_timeout)
        if self._state is before and not actions:
            return
        if self._state.phase is Phase.FAILED or any(isinstance(action, Join | Sync | Leave) for action in actions):
            # What was to be sent in the phase that is over has no meaning in the next one. After a failure a join
            # would leave a member behind that no process represents.
            self._todo = deque(each for each in self._todo if not isinstance(each, Join | Sync | Pause))
        self._todo.extend(actions)
        self._changed.notify_all()
