"""One member of a group: the thread that performs what the state machine asks for.

The thread named ``group-member`` owns the membership connection. Everybody else reads snapshots and posts events; each
public method says who may call it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import closing

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.actions import Action, Assigned, Join, Leave, Lost, Pause, Revoked, Sync
from spark_group_source.group.classic.heartbeat_state import HeartbeatState
from spark_group_source.group.classic.heartbeats import Heartbeats
from spark_group_source.group.classic.leaving import LEAVE_TIMEOUT, leave
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.classic.rebalance import Rebalance
from spark_group_source.group.counters import Timings
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import (
    BatchCompleted,
    Close,
    RequestFailed,
    SubscriptionChanged,
    Synced,
    Tick,
)
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership
from spark_group_source.group.state import Membership, Phase
from spark_group_source.offsets import Partitions
from spark_group_source.wire.backoff import Backoff
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import sleep
from spark_group_source.wire.wakeup import Interrupted, WakeupPipe

log = logging.getLogger(__name__)

STUCK = 1.0
"""Seconds until a thread that a user's own code holds up is left behind, and its member leaves without it."""

PROMPT_JOINS = 4
"""Joins in a row without a heartbeat that the group took: a new member needs two, and a hand-over two more. Each
further one waits, or a coordinator that contradicts itself would be asked thousands of times a second."""

RESOLVING_PART = 0.5
"""Part of a session that start positions may take on the member's thread, which does not heartbeat meanwhile: the first
heartbeat after it still has half a session to arrive."""


class Member:
    """Membership of one query. Made when the query starts, closed when it ends, never used again.

    What both threads need is in :class:`SharedMembership`; ``_ending`` guards who closes the wakeup. Everything else
    that changes is the thread's own.
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
        self._coordinator = MembershipRequests(cluster, settings, timings)
        self._rounds = Rebalance(cluster, self._coordinator, settings, clock, self._closing)
        self._shared = SharedMembership(settings, clock, cooperative=self._rounds.cooperative)
        self._pulse = HeartbeatState(settings, clock)
        self._session = Heartbeats(self._coordinator, self._shared, settings, clock, self._closing)
        self._joins = Backoff(settings.retry_backoff, settings.retry_backoff_max)
        self._paused = False
        self._joining_because = ""
        self._closed = False
        self._leaving = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._left_behind = False
        # A daemon: where the process is ended without close(), it must not wait for the group.
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)

    def start(self, topics: Collection[str]) -> None:
        """Begins to join, subscribed to ``topics``. Caller: the query, once."""
        self._rounds.subscribe(topics)
        self._thread.start()

    def snapshot(self) -> Membership:
        """The membership as it is now. Caller: anybody.

        Raises:
            GroupSourceError: the group refused this member for good.
        """
        return self._shared.snapshot()

    @property
    def silence(self) -> float:
        """Seconds since the coordinator last answered a sync or a heartbeat. Caller: anybody."""
        return self._pulse.silence

    def await_share(self, deadline: Deadline) -> bool:
        """Waits for the first share of the group, empty or not; whether it came. Caller: the query.

        Raises:
            GroupSourceError: the group refused this member for good.
        """
        return self._shared.await_settled(deadline)

    def plan(self, partitions: Partitions, uncommitted: Partitions, me: Membership) -> Partitions:
        """Registers a batch that is to read ``partitions``; returns those it may, which are readable still.

        A partition that was lost and came back since the snapshot ``me`` is left out: its position is another one now.
        Until :meth:`batch_done` a hand-over of these waits for the batch, and that of ``uncommitted`` ones for the
        commit of what earlier batches read. Caller: the query.
        """
        return self._shared.plan(partitions, uncommitted, me)

    def commit_refused(self, me: Membership, refused: RequestFailed) -> None:
        """The coordinator refused a commit of ``me``, since it is no member any more. Caller: both threads."""
        self._shared.commit_refused(me, refused)

    def batch_done(self, uncommitted: Partitions) -> None:
        """The batch is completed, and committed except of ``uncommitted`` partitions. Caller: the query."""
        self._shared.post(BatchCompleted(uncommitted))

    def close(self) -> None:
        """Leaves the group and ends the thread, within :data:`LEAVE_TIMEOUT`. Caller: the query, at its end.

        A thread that a user's own code holds up ends when that returns, and does nothing more. Repeating it does no
        harm.
        """
        self._shared.post(Close())
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        if self._thread.is_alive() and not self._leaving.wait(STUCK):
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
            while self._turn():
                pass
        except Interrupted:
            self._leave()
        except BaseException as error:  # a user's function may call sys.exit()
            log.exception("group %s: the member's thread failed", self._settings.group_id)
            unexpected = GroupSourceError(f"The membership in group '{self._settings.group_id}' failed: {error!r}.")
            trouble = error if isinstance(error, GroupSourceError) else unexpected
            self._shared.post(RequestFailed(ErrorAction.FATAL, repr(error), error=trouble))
            self._leave()  # the group did not refuse it: its partitions must not wait for the session to end
        finally:
            self._cluster.close()
            with self._ending:
                self._ended = True
                if self._left_behind:
                    self._closing.close()

    def _turn(self) -> bool:
        """Performs the next thing there is to do; whether there may be more."""
        action, over = self._shared.next_action(self._session.next_heartbeat)
        if action is not None:
            self._perform(action)
        elif not over:
            self._keep_alive()
        return not over

    def _perform(self, action: Action) -> None:
        match action:
            case Join():
                self._join()
            case Sync():
                self._sync()
            case Pause(rediscover):
                self._pause(rediscover)
            case Leave():
                self._leave()
            case Assigned(partitions):
                self._listener.partitions_assigned(partitions, self._shared.now, self._resolving())
            case Revoked(partitions, late):
                self._listener.revoked(partitions, late)
            case Lost(partitions, why):
                self._listener.lost(partitions, why)

    def _join(self) -> None:
        wait = self._joins.next()
        if self._joins.failures > PROMPT_JOINS and not self._paused:
            sleep(wait, self._within(wait))
        self._paused = False
        me = self._shared.now
        # The first join of a member only gets it an id, with which it joins at once.
        level = logging.INFO if me.member_id and me.reason != self._joining_because else logging.DEBUG
        log.log(level, "group %s: joining, because %s", self._settings.group_id, me.reason)
        self._joining_because = me.reason
        self._listener.joining()
        answer = self._rounds.join(me, self._session.watch(me))
        if isinstance(answer, RequestFailed):
            self._refused(answer)
        else:
            self._shared.post(answer)

    def _sync(self) -> None:
        answer: Partitions | RequestFailed
        shares = self._rounds.assign()
        if isinstance(shares, RequestFailed):
            answer = shares
        else:
            self._session.sent()
            answer = self._rounds.sync(shares, self._session.watch(self._shared.now))
        if isinstance(answer, RequestFailed):
            self._refused(answer)
            return
        self._pulse.well()
        self._joining_because = ""
        self._session.kept()
        self._shared.post(Synced(answer, self._session.proven_until))
        self._report()
        self._listener.rebalanced()
        while news := self._shared.next_news():  # at once, so that a share counts as settled with its positions
            self._perform(news)
        self._shared.settle()

    def _within(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock, self._closing)

    def _resolving(self) -> Deadline:
        """When the listener must have found start positions: heartbeats wait for it."""
        return self._within(self._settings.session_timeout * RESOLVING_PART)

    def _report(self) -> None:
        owned = sorted(self._shared.now.readable)
        log.info(
            "group %s: generation %s owns %d partition(s)%s",
            self._settings.group_id,
            self._rounds,
            len(owned),
            ": " + ", ".join(map(str, owned[:20])) + (", ..." if len(owned) > 20 else "") if owned else "",
        )

    def _keep_alive(self) -> None:
        """Heartbeats when it is time; as the leader, looks whether the topics are still as they were assigned."""
        self._shared.post(Tick())
        me = self._shared.now
        if me.phase not in (Phase.STABLE, Phase.REVOKING) or not self._session.is_due():
            return
        self._session.kept()
        refused = self._session.heartbeat(me)
        # That the group rebalances is no news while it waits for this member, and the answer keeps the session alive.
        awaited = me.phase is Phase.REVOKING and refused is not None and refused.action is ErrorAction.REJOIN
        if refused is not None and not awaited:
            self._refused(refused)
            return
        self._pulse.well()
        self._joins.reset()
        if me.phase is not Phase.STABLE:
            return  # the hand-over has a deadline, and what follows may take half a session
        if self._rounds.look_due():
            if why := self._rounds.outdated():
                self._shared.post(SubscriptionChanged(why))
        else:
            self._listener.heard(me, self._resolving())

    def _refused(self, refused: RequestFailed) -> None:
        self._pulse.refused(refused)
        self._shared.post(refused)

    def _pause(self, rediscover: bool) -> None:
        if rediscover:
            self._coordinator.rediscover()
        seconds = self._pulse.pause()
        sleep(seconds, self._within(seconds))
        self._paused = True
        self._session.retry()

    def _leave(self, coordinator: MembershipRequests | None = None) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            leave(coordinator or self._coordinator, self._settings, self._shared.now.member_id, self._clock)
