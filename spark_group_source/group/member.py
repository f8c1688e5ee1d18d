"""A member of a group: its life cycle, and the thread that runs it.

The thread named ``group-member`` owns the membership's connections; :meth:`Member._live` is its loop. It sends the
requests of a group protocol, applies the coordinator's answers to the membership's state machine, and performs the
actions that follow. A heartbeat is sent by ``_heartbeat`` of a protocol (:mod:`.classic.protocol`,
:mod:`.consumer.protocol`); if the coordinator rejects it, :mod:`.error_actions` says what follows. Other threads read
snapshots and post events; each public method says which thread may call it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.counters import Counters
from spark_group_source.group.error_actions import MAY_HEAL, ErrorAction
from spark_group_source.group.membership import (
    NO_GENERATION,
    Action,
    Assigned,
    AssignmentAnswered,
    AwaitBackoff,
    AwaitedChanged,
    Close,
    Event,
    Heartbeat,
    Leave,
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
from spark_group_source.group.protocol import LEAVE_TIMEOUT, GroupProtocol, MemberContext
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.rejected_join import DESCRIPTION_TIMEOUT, explain
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.waiting import Interrupted, WakeupPipe

log = logging.getLogger(__name__)

BLOCKED_AFTER = 1.0
"""Seconds that :meth:`Member.close` waits for the thread to begin to leave. After that, :meth:`Member.close` assumes
that a user's own code blocks the thread, and leaves the group itself."""


IN_GROUP = (Phase.STABLE, Phase.REVOKING)
"""Phases in which the member has an assignment, and sends heartbeats."""


class AwaitedOffsets(Protocol):
    """The query's offsets, as far as revocations wait for them. Any thread may call these methods, which return at
    once."""

    def awaited(self) -> Partitions:
        """Partitions for which a revocation waits: the batch in flight reads them, or commits or starts are pending."""

    def reserve(self, partitions: Partitions) -> None:
        """Notes that the batch that is being planned reads these partitions."""


class Member:
    """Membership of one query. Created when the query starts, closed when it ends, never used again.

    It takes events from both threads, and queues actions for the member's thread. The condition ``_changed`` guards the
    state, the actions, and ``_has_assignment``, whether the first assignment and its start positions are known. A
    thread that holds ``_changed`` waits for nothing else. ``_ending`` guards which thread frees the wakeup. Only the
    member's thread changes the other attributes. ``rebalanced_at`` is when the present generation began, in seconds of
    the clock.
    """

    _listener: RebalanceListener

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
        self._protocol = _protocol(settings)(MemberContext(cluster, settings, clock, self._closing, timings))
        self._heartbeats = self._protocol.heartbeats
        self._was_member = False
        self._logged_reason = self._protocol.initial.reason
        self._changed = threading.Condition()
        self._state: Membership = self._protocol.initial
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
        """Begins to join, subscribed to ``topics``. Caller: the query's thread, once."""
        self._listener = listener
        subscribed = self._protocol.subscribe(topics)
        if subscribed is not None:
            self.post(subscribed)
        self._thread.start()

    def snapshot(self) -> Membership:
        """The current membership. Caller: any thread.

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
        """Seconds since the last successful heartbeat or SyncGroup. Caller: any thread."""
        return self._heartbeats.time_since_heartbeat

    @property
    def last_failure(self) -> str:
        """Why the last request of the membership failed; empty if it succeeded. Caller: any thread."""
        return self._heartbeats.last_failure

    @property
    def has_assignment(self) -> bool:
        """Whether the first assignment and its start positions are known. Caller: any thread."""
        return self._has_assignment

    def await_assignment(self, deadline: Deadline) -> bool:
        """Waits for the first assignment, empty or not, and its start positions, or for the end of the membership.

        Returns whether the start positions are known. Caller: the query's thread.

        Raises:
            GroupSourceError: the membership failed.
        """
        with self._changed:
            while not self._has_assignment and not self._state.ended and not deadline.expired():
                self._changed.wait(deadline.remaining())
        self.snapshot()
        return self._has_assignment

    def plan(self, partitions: Partitions, me: Membership) -> Partitions:
        """Registers a batch that will read ``partitions``; returns those that are still readable.

        Leaves out a partition that was lost and assigned again since the snapshot ``me``: its position may differ. A
        revocation of the returned partitions waits until this batch is committed. Caller: the query's thread.
        """
        with self._changed:
            self._apply(Tick())
            readable = self._state.readable
            allowed = set()
            for tp in partitions:
                if tp in readable and readable[tp] == me.owned.get(tp):
                    allowed.add(tp)
            self._offsets.reserve(frozenset(allowed))
            self._step(AwaitedChanged(self._offsets.awaited()))
            return frozenset(allowed)

    def commits_changed(self) -> None:
        """Notes that commits have succeeded or become pending, because a revocation may wait for them. Caller: any
        thread."""
        with self._changed:  # so that the last answer is the newest
            self._apply(AwaitedChanged(self._offsets.awaited()))

    def commit_rejected(self, me: Membership, failure: RequestFailed, deadline: Deadline) -> Membership | None:
        """Handles a commit that the coordinator rejected, because ``me`` is no member any more or has another epoch by
        now.

        Returns the membership with which to commit again at once; ``None`` if there is none. After a stale epoch, the
        query waits until the ``deadline`` for the answer with the new epoch. If the membership still has the rejected
        generation, all owned partitions are lost. While a join is pending, that holds only if the coordinator does not
        know the member id: otherwise the generation may have ended because all members joined, and the response to the
        join decides. Caller: any thread.
        """
        with self._changed:
            if failure.action is ErrorAction.STALE_EPOCH:
                return self._await_newer_epoch(me, deadline)
            if self._has_lost_generation(me, failure):
                # Keeps the member id: if the coordinator does not know it, the join fails with that error.
                self._apply(replace(failure, action=ErrorAction.RESET_GENERATION))
            return None

    def _await_newer_epoch(self, me: Membership, deadline: Deadline) -> Membership | None:
        """Waits for another epoch than that of ``me``; ``None`` if none came. The caller holds the lock."""
        if threading.current_thread() is not self._thread:  # that thread itself receives the answer with the new epoch
            while self._is(me) and not self._state.ended and not deadline.expired():
                self._changed.wait(deadline.remaining())
        if self._state.ended or self._is(me):
            return None
        return self._state

    def _has_lost_generation(self, me: Membership, failure: RequestFailed) -> bool:
        """Whether a rejected commit proves that the membership has lost its partitions. The caller holds the lock."""
        if not self._state.owned:
            return False
        if not self._is(me):
            return False  # it has another generation by now, and the rejection was about the former one
        if failure.action is ErrorAction.RESET_MEMBER_ID:
            return True
        return self._state.phase in IN_GROUP

    def _is(self, me: Membership) -> bool:
        """Whether the membership has the member id and generation of ``me``. The caller holds the lock."""
        return (self._state.member_id, self._state.generation) == (me.member_id, me.generation)

    def post(self, event: Event) -> Membership:
        """Applies an event, and returns the membership after it. Caller: any thread."""
        with self._changed:
            self._apply(event)
            return self._state

    def _apply(self, event: Event) -> None:
        """Applies an event to the membership as it is now; the caller holds the lock.

        First checks the pending revocation against the partitions that are awaited at this moment, and ends the
        revocation or the session if its time has passed. A success extends the session before the clock is checked.
        """
        if not isinstance(event, Tick | AwaitedChanged):
            self._step(AwaitedChanged(self._offsets.awaited()))
        if isinstance(event, SessionExtended):
            self._step(event)
        self._step(Tick())
        if not isinstance(event, Tick | SessionExtended):
            self._step(event)

    def _step(self, event: Event) -> None:
        """Steps the state machine, and queues its actions for the member's thread; the caller holds the lock."""
        before = self._state
        self._state, actions = self._protocol.state_machine(
            before, event, self._clock(), self._settings.revocation_timeout
        )
        if self._state is before and not actions:
            return
        replaces = any(isinstance(action, Request) for action in actions)
        if replaces or self._state.phase is Phase.FAILED:
            # A request of the previous phase is obsolete in the next one. After a failure, a join would create a
            # member that no process represents.
            self._actions = deque(action for action in self._actions if isinstance(action, Notification))
        self._actions.extend(actions)
        self._changed.notify_all()

    def close(self) -> None:
        """Leaves the group and ends the thread, within :data:`LEAVE_TIMEOUT`. Caller: any thread, when the query ends.

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
        log.warning(
            "group %s: your code blocks the member's thread: an assignor or startingOffsetsCallback has not returned."
            " The member leaves over another connection.",
            self._settings.group_id,
        )
        with closing(Cluster(self._cluster.options, identity=self._cluster.identity)) as cluster:
            self._leave(cluster)

    # The life cycle. From here on, all methods are for the member's thread.

    def _run(self) -> None:
        """Runs the life cycle; leaves the group when the query ends, or if something fails unexpectedly."""
        try:
            self._live()
        except Interrupted:
            self._leave()
        except BaseException as error:  # a user's function may call sys.exit()
            log.exception("group %s: the member's thread failed", self._settings.group_id)
            failure: BaseException = error
            if not isinstance(failure, GroupSourceError):
                failure = GroupSourceError(f"The membership in group '{self._settings.group_id}' failed: {error!r}.")
            self.post(RequestFailed(ErrorAction.FATAL, repr(error), error=failure))
            self._leave()
        finally:
            self._cluster.close()
            with self._ending:
                self._ended = True
                if self._left_behind:
                    self._closing.close()

    def _live(self) -> None:
        """The life cycle: performs the queued actions, and keeps the membership alive while there are none.

        The first action is the request that joins. An answer with an assignment notifies the query. A smaller
        assignment revokes partitions, which the next request reports. A failure leads to a retry, a new join or the
        end.
        """
        while not self._is_over():
            match self._next_action():
                case None:
                    self._keep_alive()
                case Leave():
                    self._leave()
                case AwaitBackoff(rediscover):
                    self._back_off(rediscover)
                case Notification() as notification:
                    self._notify(notification)
                case request:
                    self._send(request)

    def _is_over(self) -> bool:
        """Whether the membership has ended, and no action is left."""
        with self._changed:
            return self._state.ended and not self._actions

    def _next_action(self) -> Action | None:
        """Waits for the next action; ``None`` if a heartbeat, the maintenance of offsets or the end of a wait is due
        before."""
        due = min(self._heartbeats.next_heartbeat, self._maintenance_due())
        with self._changed:
            if not self._actions and not self._state.ended:
                self._changed.wait(max(0.0, min(due, self._times_out_at()) - self._clock()))
            if not self._actions:
                return None
            return self._actions.popleft()

    def _keep_alive(self) -> None:
        """Sends a heartbeat if one is due. Unless the heartbeat fails, checks topics or maintains offsets.

        The topic check runs only directly after a heartbeat, if the check is due; the maintenance of offsets then waits
        for the next call.
        """
        phase = self.post(Tick()).phase
        if phase not in IN_GROUP:
            return
        if self._heartbeats.try_acquire(self._protocol.client.throttled):
            if not self._send(Heartbeat()):
                return
            if self._is_topic_check_due():
                self._check_topics()
                return
        self._maintain_offsets()

    def _send(self, request: Action) -> bool:
        """Sends a request, and applies its outcome. Returns whether the member is still in the group, as far as it
        knows: the request did not fail, and no partitions were lost meanwhile."""
        if self._protocol.is_join(request, self._state):
            self._begin_join()
        before = self._state
        outcome = self._protocol.send(request, before, self.post)
        for event in outcome.events:
            self.post(event)
        if outcome.failure is not None:
            self._request_failed(outcome.failure)
            return False
        if not outcome.events:
            return True
        return self._accepted(outcome.events[-1], before)

    def _accepted(self, answer: Event, before: Membership) -> bool:
        """Acts on an answer that has been applied: schedules the next heartbeat, and notifies the query of an
        assignment.

        Returns False if all partitions were lost before the answer came, so that a join follows.
        """
        if isinstance(answer, SessionExtended):
            self._heartbeats.record_success(joined=before.phase is not Phase.JOINING)
        if isinstance(answer, AssignmentAnswered):
            self._was_member = True
            self._heartbeats.schedule_next()
            if self._state.generation == NO_GENERATION:
                return False
        if self._protocol.note_answer(answer, before, self._state):
            self._notify_of_assignment()
        if isinstance(answer, AssignmentAnswered):
            happened = self._protocol.notified(joined=before.phase is Phase.JOINING)
            if happened is not None:
                self.post(happened)
        return True

    def _request_failed(self, failure: RequestFailed) -> None:
        """Logs a failure and applies it. The failure's :class:`ErrorAction` says what the member does next.

        If this query was in the group before, the errors in :data:`MAY_HEAL` are retried too. Otherwise the query owns
        no partitions that a delay could cost it, so it may first look up the group's members and assignor, with which
        the error explains the rejection.
        """
        if not self._was_member:
            failure = explain(
                failure, self._protocol.client, self._settings, self._protocol.within(DESCRIPTION_TIMEOUT)
            )
        elif getattr(failure.error, "error_code", None) in MAY_HEAL:
            failure = RequestFailed(ErrorAction.REDISCOVER, failure.reason)
        self._heartbeats.log_failure(failure)
        self.post(failure)

    def _times_out_at(self) -> float:
        """When a pending revocation or the session times out, in seconds of the clock. The caller holds the lock."""
        times_out_at = math.inf
        if self._state.phase is Phase.REVOKING:
            times_out_at = self._state.revoke_by
        if self._state.owned:
            times_out_at = min(times_out_at, self._state.session_ends)
        return times_out_at

    def _begin_join(self) -> None:
        """Waits for the backoff of a join, and logs its reason, once for joins in a row."""
        self._heartbeats.await_join()
        reason = self._state.reason
        level = logging.INFO
        if reason == self._logged_reason:
            level = logging.DEBUG
        log.log(level, "group %s: joining, because %s", self._settings.group_id, reason)
        self._logged_reason = reason
        self.counters.joins += 1

    def _back_off(self, rediscover: bool) -> None:
        if rediscover:
            self._protocol.rediscover()
        self._heartbeats.await_retry()

    def _is_topic_check_due(self) -> bool:
        if self._state.phase is not Phase.STABLE:
            return False  # a revocation has a deadline
        return self._clock() >= self._protocol.next_topic_check

    def _check_topics(self) -> None:
        changed = self._protocol.check_topics(self._state)
        if changed is not None:
            self.post(changed)

    def _maintenance_due(self) -> float:
        """When :meth:`_maintain_offsets` is due, in seconds of the clock."""
        me = self._state
        if me.phase not in IN_GROUP:
            return math.inf
        return self._listener.maintenance_due(me)

    def _maintain_offsets(self) -> None:
        """Lets the listener maintain its offsets if that is due, also while a revocation waits for a commit."""
        if self._clock() >= self._maintenance_due():
            self._listener.maintain_offsets(self._state, self._protocol.start_positions_deadline())

    def _notify_of_assignment(self) -> None:
        """Notifies the listener of a new assignment, and then wakes a query that waits for its first assignment."""
        self._logged_reason = ""
        self.counters.rebalances += 1
        self.rebalanced_at = self._clock()
        notification = self._next_notification()
        while notification is not None:  # first, because the query needs the start positions
            self._notify(notification)
            notification = self._next_notification()
        with self._changed:
            self._has_assignment = True
            self._changed.notify_all()

    def _next_notification(self) -> Notification | None:
        """Takes the next action if it notifies the listener."""
        with self._changed:
            if not self._actions:
                return None
            first = self._actions[0]
            if not isinstance(first, Notification):
                return None
            self._actions.popleft()
            return first

    def _notify(self, notification: Notification) -> None:
        match notification:
            case Assigned(partitions):
                deadline = self._protocol.start_positions_deadline()
                self._listener.partitions_assigned(partitions, self._state, deadline)
            case Revoked(partitions):
                self._listener.partitions_revoked(partitions)
            case Lost(partitions, reason):
                self._listener.partitions_lost(partitions, reason)

    def _leave(self, cluster: Cluster | None = None) -> None:
        """Leaves the group, once; over ``cluster`` if the member's thread is blocked."""
        if not self._leaving.is_set():
            self._leaving.set()
            self._protocol.leave(self._state, cluster)


def _protocol(settings: GroupSettings) -> Callable[[MemberContext], GroupProtocol[Any]]:
    """Imports one protocol only, because every query waits for its imports."""
    if settings.consumer_protocol:
        from spark_group_source.group.consumer.protocol import ConsumerProtocol

        return ConsumerProtocol
    from spark_group_source.group.classic.protocol import ClassicProtocol

    return ClassicProtocol
