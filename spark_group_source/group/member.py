"""A member of a group: the thread that performs the actions of the membership's state machine.

The thread named ``group-member`` owns the membership's connections. Other threads read snapshots and post events; each
public method says which thread may call it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import closing

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.classic.events import Join, SubscriptionChanged, Sync, Synced
from spark_group_source.group.classic.handshake import ClassicMembership, step
from spark_group_source.group.classic.heartbeats import Heartbeats, HeartbeatState
from spark_group_source.group.classic.membership_requests import LEAVE_TIMEOUT, MembershipRequests, leave
from spark_group_source.group.classic.rebalance import Rebalance
from spark_group_source.group.counters import Timings
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import (
    Action,
    Assigned,
    AwaitBackoff,
    BatchCompleted,
    Close,
    Leave,
    Lost,
    RequestFailed,
    Revoked,
    Tick,
)
from spark_group_source.group.membership import Membership, Phase
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import sleep
from spark_group_source.wire.wakeup import Interrupted, WakeupPipe

log = logging.getLogger(__name__)

BLOCKED_AFTER = 1.0
"""Seconds that :meth:`Member.close` waits for the thread to leave; then a user's own code blocks it, and the member
leaves without its thread."""

START_POSITIONS_PART = 0.5
"""Part of the session timeout for finding start positions on the member's thread, which sends no heartbeat meanwhile.
The other part is left for the next heartbeat."""


class Member:
    """Membership of one query. Created when the query starts, closed when it ends, never used again.

    :class:`SharedMembership` holds the state of both threads; ``_ending`` guards which thread frees the wakeup. Only
    the member's thread changes the other attributes.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        listener: RebalanceListener,
        clock: Clock = monotonic,
        timings: Timings | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._closing = WakeupPipe()
        self._requests = MembershipRequests(cluster, settings, timings)
        self._rebalance = Rebalance(cluster, self._requests, settings, clock, self._closing)
        start = ClassicMembership(cooperative=self._rebalance.cooperative)
        self._shared = SharedMembership(settings, clock, step, start, Join())
        self._heartbeat_state = HeartbeatState(settings, clock)
        self._heartbeats = Heartbeats(self._requests, self._shared, settings, clock, self._closing)
        self._closed = False
        self._leaving = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._left_behind = False
        # A daemon: a process that ends without close() must not wait for the group.
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)

    def start(self, topics: Collection[str]) -> None:
        """Begins to join, subscribed to ``topics``. Caller: the query, once."""
        self._rebalance.subscribe(topics)
        self._thread.start()

    def snapshot(self) -> Membership:
        """The membership as it is now. Caller: anybody.

        Raises:
            GroupSourceError: the membership failed.
        """
        return self._shared.snapshot()

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the last successful heartbeat or SyncGroup. Caller: anybody."""
        return self._heartbeat_state.time_since_heartbeat

    def await_assignment(self, deadline: Deadline) -> bool:
        """Waits for the first assignment, empty or not; whether it is known. Caller: the query.

        Raises:
            GroupSourceError: the membership failed.
        """
        return self._shared.await_assignment(deadline)

    def plan(self, partitions: Partitions, uncommitted: Partitions, me: Membership) -> Partitions:
        """Registers a batch that will read ``partitions``; returns those that are still readable.

        Leaves out a partition that was lost and assigned again since the snapshot ``me``: its position may differ.
        Until :meth:`batch_completed` a revocation of the returned partitions waits for the batch, and a revocation of
        ``uncommitted`` ones for the commit of earlier batches. Caller: the query.
        """
        return self._shared.plan(partitions, uncommitted, me)

    def commit_rejected(self, me: Membership, failure: RequestFailed) -> None:
        """The coordinator rejected a commit of ``me``, because it is no member any more. Caller: both threads."""
        self._shared.commit_rejected(me, failure)

    def batch_completed(self, uncommitted: Partitions) -> None:
        """The batch is completed, and committed except for ``uncommitted`` partitions. Caller: the query."""
        self._shared.post(BatchCompleted(uncommitted))

    def close(self) -> None:
        """Leaves the group and ends the thread, within :data:`LEAVE_TIMEOUT`. Caller: the query, at its end.

        If a user's own code blocks the thread, the thread ends when that code returns, and does nothing more. Further
        calls do nothing.
        """
        self._shared.post(Close())
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
        with closing(Cluster(self._cluster.options)) as cluster:
            self._leave(MembershipRequests(cluster, self._settings))

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
            self._shared.post(RequestFailed(ErrorAction.FATAL, repr(error), error=failure))
            self._leave()  # the coordinator still has the member: its partitions must not wait for the session timeout
        finally:
            self._cluster.close()
            with self._ending:
                self._ended = True
                if self._left_behind:
                    self._closing.close()

    def _step(self) -> bool:
        """Performs the next action, or sends a heartbeat if due; whether the membership continues."""
        action, ended = self._shared.next_action(self._heartbeats.next_heartbeat)
        if action is not None:
            self._perform(action)
        elif not ended:
            self._keep_alive()
        return not ended

    def _perform(self, action: Action) -> None:
        match action:
            case Join():
                self._join()
            case Sync():
                self._sync()
            case AwaitBackoff(rediscover):
                self._await_backoff(rediscover)
            case Leave():
                self._leave()
            case Assigned(partitions):
                self._listener.partitions_assigned(
                    partitions, self._shared.membership, self._start_positions_deadline()
                )
            case Revoked(partitions, late):
                self._listener.partitions_revoked(partitions, late)
            case Lost(partitions, reason):
                self._listener.partitions_lost(partitions, reason)

    def _join(self) -> None:
        self._rebalance.await_join_backoff()
        me = self._shared.membership
        self._rebalance.log_join(me)
        self._listener.join_started()
        joined = self._rebalance.join(me, self._heartbeats.while_join_or_sync_waits(me))
        if isinstance(joined, RequestFailed):
            self._request_failed(joined)
        else:
            self._shared.post(joined)

    def _sync(self) -> None:
        assigned: Partitions | RequestFailed
        assignments = self._rebalance.assign()
        if isinstance(assignments, RequestFailed):
            assigned = assignments
        else:
            self._heartbeats.note_sync_sent()
            while_waiting = self._heartbeats.while_join_or_sync_waits(self._shared.membership)
            assigned = self._rebalance.sync(assignments, while_waiting)
        if isinstance(assigned, RequestFailed):
            self._request_failed(assigned)
            return
        self._heartbeat_state.record_success()
        self._heartbeats.schedule_next()
        self._shared.post(Synced(assigned, self._heartbeats.session_ends))
        self._rebalance.log_generation(self._shared.membership)
        self._listener.rebalance_completed()
        while notification := self._shared.next_notification():  # before note_assignment: the query needs the positions
            self._perform(notification)
        self._shared.note_assignment()

    def _keep_alive(self) -> None:
        """Sends a heartbeat if one is due; after its success, checks topics or retries start positions."""
        self._shared.post(Tick())
        me = self._shared.membership
        if me.phase not in (Phase.STABLE, Phase.REVOKING) or not self._heartbeats.try_acquire():
            return
        failure = self._heartbeats.send(me)
        # While a revocation is pending, the group waits for this member: REBALANCE_IN_PROGRESS keeps the session alive.
        if failure is not None and not (me.phase is Phase.REVOKING and failure.action is ErrorAction.REJOIN):
            self._request_failed(failure)
            return
        self._heartbeat_state.record_success()
        self._rebalance.reset_join_backoff()
        if me.phase is Phase.STABLE:  # a revocation has a deadline, and this may take half a session
            self._check_topics_or_notify(me)

    def _check_topics_or_notify(self, me: Membership) -> None:
        if not self._rebalance.topic_check_due():
            self._listener.heartbeat_succeeded(me, self._start_positions_deadline())
        elif reason := self._rebalance.reason_to_rejoin():
            self._shared.post(SubscriptionChanged(reason))

    def _request_failed(self, failure: RequestFailed) -> None:
        self._heartbeat_state.log_failure(failure)
        self._shared.post(failure)

    def _await_backoff(self, rediscover: bool) -> None:
        if rediscover:
            self._requests.rediscover()
        seconds = self._heartbeat_state.next_backoff()
        sleep(seconds, self._within(seconds))
        self._rebalance.skip_join_backoff()
        self._heartbeats.schedule_now()

    def _leave(self, requests: MembershipRequests | None = None) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            leave(requests or self._requests, self._settings, self._shared.membership.member_id, self._clock)

    def _within(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock, self._closing)

    def _start_positions_deadline(self) -> Deadline:
        """The deadline of a listener that finds start positions: heartbeats wait for it."""
        return self._within(self._settings.session_timeout * START_POSITIONS_PART)
