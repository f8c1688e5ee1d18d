"""A member of a group: the thread that performs the actions of the membership's state machine.

The thread named ``group-member`` owns the membership's connections. Other threads read snapshots and post events; each
public method says which thread may call it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.counters import Counters
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import (
    Action,
    AwaitedChanged,
    Close,
    Event,
    Leave,
    Membership,
    Notification,
    Phase,
    Request,
    RequestFailed,
    SessionExtended,
    Tick,
)
from spark_group_source.group.protocol import LEAVE_TIMEOUT, GroupProtocol
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.waiting import Interrupted, WakeupPipe

log = logging.getLogger(__name__)

BLOCKED_AFTER = 1.0
"""Seconds that :meth:`Member.close` waits for the thread to leave; then a user's own code blocks it, and the member
leaves without its thread."""


class AwaitedOffsets(Protocol):
    """The query's offsets, as far as revocations wait for them. Any thread calls these methods; they return at once."""

    def awaited(self) -> Partitions:
        """Partitions for which a revocation waits: the batch in flight reads them, or commits or starts are pending."""

    def reserve(self, partitions: Partitions) -> None:
        """The batch that is planned now reads these."""


class Member:
    """Membership of one query. Created when the query starts, closed when it ends, never used again.

    It takes events from both threads, and queues actions for the member's thread. The condition ``_changed`` guards the
    state, the actions, and ``_has_assignment``, whether the first assignment and its start positions are known. Who
    holds it waits for nothing else. ``_ending`` guards which thread frees the wakeup. Only the member's thread changes
    the other attributes. ``rebalanced_at`` is when the present generation began, in seconds of the clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        offsets: AwaitedOffsets,
        clock: Clock = monotonic,
        timings: Timings | None = None,
    ) -> None:
        self.counters = Counters()
        self.rebalanced_at: float | None = None
        self._cluster = cluster
        self._settings = settings
        self._offsets = offsets
        self._clock = clock
        self._closing = WakeupPipe()
        self._protocol = _protocol(settings)(self, cluster, settings, clock, self._closing, timings)
        self._changed = threading.Condition()
        self._state = self._protocol.initial
        self._actions: deque[Action] = deque([self._protocol.first])
        self._has_assignment = False
        self._closed = False
        self._leaving = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._left_behind = False
        # A daemon: a process that ends without close() must not wait for the group.
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)

    def start(self, topics: Mapping[str, Topic], listener: RebalanceListener) -> None:
        """Begins to join, subscribed to ``topics``. Caller: the query, once."""
        self._protocol.listener = listener
        self._protocol.subscribe(topics)
        self._thread.start()

    @property
    def membership(self) -> Any:
        """The membership after the last event, of the type of its protocol. Caller: the member's thread."""
        return self._state

    def snapshot(self) -> Membership:
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

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the last successful heartbeat or SyncGroup. Caller: anybody."""
        return self._protocol.heartbeats.time_since_heartbeat

    @property
    def last_failure(self) -> str:
        """Why the last request of the membership failed; empty since one has succeeded. Caller: anybody."""
        return self._protocol.heartbeats.last_failure

    @property
    def has_assignment(self) -> bool:
        """Whether the first assignment and its start positions are known. Caller: anybody."""
        return self._has_assignment

    def await_assignment(self, deadline: Deadline) -> bool:
        """Waits for the first assignment, empty or not, and its start positions, or for the end of the membership.

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

        Leaves out a partition that was lost and assigned again since the snapshot ``me``: its position may differ.
        Until the batch is committed a revocation of the returned partitions waits for it. Caller: the query.
        """
        with self._changed:
            self._apply(Tick())
            readable = self._state.readable
            allowed = frozenset(tp for tp in partitions if tp in readable and readable[tp] == me.owned.get(tp))
            self._offsets.reserve(allowed)
            self._apply(AwaitedChanged(self._offsets.awaited()))
            return allowed

    def commits_changed(self) -> None:
        """Commits succeeded, or became due: a revocation may wait for them. Caller: any thread."""
        with self._changed:  # so that the last answer is the newest
            self._apply(AwaitedChanged(self._offsets.awaited()))

    def commit_rejected(self, me: Membership, failure: RequestFailed, deadline: Deadline) -> Membership | None:
        """The coordinator rejected a commit of ``me``: it is no member any more, or has another epoch by now.

        Returns the membership with which to commit again at once, ``None`` if there is none. The answer with the new
        epoch may be on its way: the query waits for it until the ``deadline``. If the membership still has the rejected
        generation, everything owned is lost. While a join is pending, the generation may have ended because all members
        joined: the response to the join decides. Caller: any thread.
        """
        with self._changed:
            if failure.action is ErrorAction.STALE_EPOCH:
                # The member's thread itself receives that answer.
                waits = threading.current_thread() is not self._thread
                while waits and self._is(me) and not self._state.ended and not deadline.expired():
                    self._changed.wait(deadline.remaining())
                return None if self._state.ended or self._is(me) else self._state
            decided = self._state.phase in (Phase.STABLE, Phase.REVOKING)
            if (decided or failure.action is ErrorAction.RESET_MEMBER_ID) and self._is(me) and self._state.owned:
                # Keeps the member id: if the coordinator does not know it, the join fails with that error.
                self._apply(replace(failure, action=ErrorAction.RESET_GENERATION))
            return None

    def _is(self, me: Membership) -> bool:
        """Whether the membership has the member id and generation of ``me``; the caller holds the lock."""
        return (self._state.member_id, self._state.generation) == (me.member_id, me.generation)

    def post(self, event: Event) -> None:
        """Applies an event. Caller: anybody."""
        with self._changed:
            self._apply(event)

    def next_notification(self) -> Notification | None:
        """Takes the next action if it notifies the listener. Caller: the member's thread."""
        with self._changed:
            first = self._actions[0] if self._actions else None
            if not isinstance(first, Notification):
                return None
            self._actions.popleft()
            return first

    def _apply(self, event: Event) -> None:
        """Applies one event; the caller holds the lock."""
        # A revocation waits for what is pending now. A success extends the session before the clock is checked.
        pending = () if isinstance(event, (Tick, AwaitedChanged)) else (AwaitedChanged(self._offsets.awaited()),)
        for each in (*pending, event, Tick()) if isinstance(event, SessionExtended) else (*pending, Tick(), event):
            before = self._state
            self._state, actions = self._protocol.state_machine(
                before, each, self._clock(), self._settings.revocation_timeout
            )
            if self._state is before and not actions:
                continue
            if self._state.phase is Phase.FAILED or any(isinstance(action, Request) for action in actions):
                # A request of the previous phase is obsolete in the next one. After a failure, a join would create a
                # member that no process represents.
                self._actions = deque(action for action in self._actions if isinstance(action, Notification))
            self._actions.extend(actions)
            self._changed.notify_all()

    def close(self) -> None:
        """Leaves the group and ends the thread, within :data:`LEAVE_TIMEOUT`. Caller: the query, at its end.

        If a user's own code blocks the thread, the thread ends when that code returns. Further calls do nothing.
        """
        self.post(Close())
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        if self._thread.is_alive() and not self._leaving.wait(BLOCKED_AFTER):
            self._leave_without_thread()
        elif self._thread.is_alive():
            self._thread.join(LEAVE_TIMEOUT + 1.0)
        with self._ending:
            self._left_behind = self._thread.is_alive() and not self._ended
            if not self._left_behind:
                self._closing.close()

    def _leave_without_thread(self) -> None:
        log.warning("group %s: the member's thread is blocked; the member leaves without it", self._settings.group_id)
        with closing(Cluster(self._cluster.options, identity=self._cluster.identity)) as cluster:
            self._leave(cluster)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Interrupted:
            self._leave()
        except BaseException as error:  # a user's function may call sys.exit()
            log.exception("group %s: the member's thread failed", self._settings.group_id)
            unexpected = GroupSourceError(f"The membership in group '{self._settings.group_id}' failed: {error!r}.")
            failure = error if isinstance(error, GroupSourceError) else unexpected
            self.post(RequestFailed(ErrorAction.FATAL, repr(error), error=failure))
            self._leave()
        finally:
            self._cluster.close()
            with self._ending:
                self._ended = True
                if self._left_behind:
                    self._closing.close()

    def _step(self) -> bool:
        """Performs the next action, or sends a heartbeat or retry if due. Returns False once the membership ended."""
        action, ended = self._next_action(min(self._protocol.heartbeats.next_heartbeat, self._protocol.retry_due()))
        if isinstance(action, Leave):
            self._leave()
        elif action is not None:
            self._protocol.perform(action)
        elif not ended:
            self._protocol.keep_alive()
        return not ended

    def _next_action(self, until: float) -> tuple[Action | None, bool]:
        """Waits for an action, a timeout, or a heartbeat or retry that is due at ``until``; returns the action, and
        whether the membership has ended."""
        with self._changed:
            ended = self._state.ended
            if not self._actions and not ended:
                if self._state.phase is Phase.REVOKING:
                    until = min(until, self._state.revoke_by)
                if self._state.owned:
                    until = min(until, self._state.session_ends)
                self._changed.wait(max(0.0, until - self._clock()))
            action = self._actions.popleft() if self._actions else None
            return action, ended and action is None

    def _leave(self, cluster: Cluster | None = None) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            self._protocol.leave(cluster)


def _protocol(settings: GroupSettings) -> Callable[..., GroupProtocol]:
    """Imports one protocol only, because every query waits for its imports."""
    if settings.consumer_protocol:
        from spark_group_source.group.consumer.protocol import ConsumerProtocol

        return ConsumerProtocol
    from spark_group_source.group.classic.protocol import ClassicProtocol

    return ClassicProtocol
