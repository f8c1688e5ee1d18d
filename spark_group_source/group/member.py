"""One member of a group: the thread that performs what the state machine asks for.

The thread named ``group-member`` owns the membership connection. Everybody else reads snapshots and posts events; each
public method says who may call it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.actions import Action, Gained, Join, Leave, Lost, Pause, Revoked, Sync
from spark_group_source.group.coordinator import Coordinator
from spark_group_source.group.counters import Timings
from spark_group_source.group.events import BatchDone, BatchPlanned, Close, Event, Refused, SubscriptionChanged, Tick
from spark_group_source.group.listener import Listener
from spark_group_source.group.pulse import Pulse
from spark_group_source.group.rounds import Rounds
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership, Phase, step
from spark_group_source.group.verdicts import Verdict
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.interrupt import Interrupt, Interrupted

log = logging.getLogger(__name__)

LEAVE_TIMEOUT = 3.0
"""Seconds for a last LeaveGroup: Spark kills the process some seconds after it asked it to end."""

JOIN_SLACK = 10.0
"""Seconds beyond the rebalance timeout in which the broker must have answered a JoinGroup."""


class Member:
    """Membership of one query. Made when the query starts, closed when it ends, never used again.

    The condition ``_changed`` guards the state, what is to be done about it, and whether the first share has come.
    Everything else that changes is the thread's own.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        listener: Listener,
        clock: Clock = monotonic,
        timings: Timings | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._coordinator = Coordinator(cluster, settings, timings)
        self._rounds = Rounds(cluster, self._coordinator, settings, clock)
        self._state = Membership(cooperative=self._rounds.cooperative)
        self._todo: deque[Action] = deque([Join()])
        self._changed = threading.Condition()
        self._closing = Interrupt()
        self._pulse = Pulse(settings, clock)
        self._next_heartbeat = 0.0
        self._settled = False
        self._closed = False
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
        with self._changed:
            if self._state.error is not None:
                raise self._state.error
            return self._state

    @property
    def silence(self) -> float:
        """Seconds since the coordinator last answered a sync or a heartbeat. Caller: anybody."""
        return self._pulse.silence

    def await_share(self, deadline: Deadline) -> bool:
        """Waits for the first share of the group, empty or not; whether it came. Caller: the query.

        Raises:
            GroupSourceError: the group refused this member for good.
        """
        with self._changed:
            while not self._settled and self._state.error is None and not deadline.expired():
                self._changed.wait(deadline.remaining())
        self.snapshot()
        return self._settled

    def plan(self, partitions: Partitions, uncommitted: Partitions, me: Membership) -> Partitions:
        """Registers a batch that is to read ``partitions``; returns those it may, which are readable still.

        A partition that was lost and came back since the snapshot ``me`` is left out: its position is another one now.
        Until :meth:`batch_done` a hand-over of these waits for the batch, and that of ``uncommitted`` ones for the
        commit of what earlier batches read. Caller: the query.
        """
        with self._changed:
            readable = self._state.readable
            allowed = frozenset(tp for tp in partitions if tp in readable and readable[tp] == me.owned.get(tp))
            self._apply(BatchPlanned(allowed | uncommitted))
            return allowed

    def batch_done(self, uncommitted: Partitions) -> None:
        """The batch is completed, and committed except of ``uncommitted`` partitions. Caller: the query."""
        with self._changed:
            self._apply(BatchDone(uncommitted))

    def close(self) -> None:
        """Leaves the group and ends the thread, within :data:`LEAVE_TIMEOUT`. Caller: the query, at its end.

        Repeating it does no harm.
        """
        with self._changed:
            self._apply(Close())
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_TIMEOUT + 1.0)
        if not self._thread.is_alive():
            self._closing.close()

    def _apply(self, event: Event) -> None:
        """Takes one step; the caller holds the lock."""
        self._state, actions = step(self._state, event, self._clock(), self._settings.drain_timeout)
        if self._state.phase is Phase.FAILED or any(isinstance(action, Join | Leave) for action in actions):
            # What was to be sent in the phase that is over has no meaning in the next one. After a failure a join
            # would leave a member in the group that nobody is.
            self._todo = deque(each for each in self._todo if not isinstance(each, Join | Sync | Pause))
        self._todo.extend(actions)
        self._changed.notify_all()

    def _post(self, event: Event) -> None:
        with self._changed:
            self._apply(event)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Interrupted:
            self._leave()
        except Exception as error:
            log.exception("group %s: the member's thread failed", self._settings.group_id)
            unexpected = GroupSourceError(f"The membership in group '{self._settings.group_id}' failed: {error!r}.")
            trouble = error if isinstance(error, GroupSourceError) else unexpected
            self._post(Refused(Verdict.FATAL, repr(error), error=trouble))
            self._leave()  # the group did not refuse it: its partitions must not wait for the session to end
        finally:
            self._cluster.close()

    def _turn(self) -> bool:
        """Performs the next thing there is to do; whether there may be more."""
        with self._changed:
            ended = self._state.phase in (Phase.LEFT, Phase.FAILED)
            if not self._todo and ended:
                return False
            if not self._todo:
                self._changed.wait(self._idle_time())
            action = self._todo.popleft() if self._todo else None
        if action is not None:
            self._perform(action)
        else:
            self._keep_alive()
        return True

    def _idle_time(self) -> float:
        until = self._next_heartbeat
        if self._state.phase is Phase.DRAINING:
            until = min(until, self._state.drain_by)
        return max(0.0, until - self._clock())

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
            case Gained(partitions):
                self._listener.gained(partitions, self._state)
            case Revoked(partitions, late):
                self._listener.revoked(partitions, late)
            case Lost(partitions, why):
                self._listener.lost(partitions, why)

    def _join(self) -> None:
        # The first join of a member only gets it an id, with which it joins at once.
        level = logging.INFO if self._state.member_id else logging.DEBUG
        log.log(level, "group %s: joining, because %s", self._settings.group_id, self._state.reason)
        deadline = Deadline.after(self._settings.rebalance_timeout + JOIN_SLACK, self._clock)
        self._listener.joining()
        answer = self._rounds.join(self._state, deadline, self._closing)
        if isinstance(answer, Refused):
            self._refused(answer)
        else:
            self._post(answer)

    def _sync(self) -> None:
        answer = self._rounds.sync(self._closing)
        if isinstance(answer, Refused):
            self._refused(answer)
            return
        self._pulse.well()
        self._next_heartbeat = self._clock() + self._settings.heartbeat_interval
        self._post(answer)
        self._report()
        self._listener.rebalanced()
        self._perform_news()
        with self._changed:
            self._settled = True
            self._changed.notify_all()

    def _perform_news(self) -> None:
        """Tells the listener at once what the sync brought, so that a share counts as settled with its positions."""
        while True:
            with self._changed:
                if not self._todo or not isinstance(self._todo[0], Gained | Revoked | Lost):
                    return
                action = self._todo.popleft()
            self._perform(action)

    def _report(self) -> None:
        owned = sorted(self._state.readable)
        log.info(
            "group %s: generation %s owns %d partition(s)%s",
            self._settings.group_id,
            self._rounds,
            len(owned),
            ": " + ", ".join(map(str, owned[:20])) + (", ..." if len(owned) > 20 else "") if owned else "",
        )

    def _keep_alive(self) -> None:
        """Heartbeats when it is time; as the leader, looks whether the topics are still as they were assigned."""
        self._post(Tick())
        me = self._state
        if me.phase not in (Phase.STABLE, Phase.DRAINING) or self._clock() < self._next_heartbeat:
            return
        self._next_heartbeat = self._clock() + self._settings.heartbeat_interval
        refused = self._coordinator.heartbeat(me, Deadline.after(self._settings.heartbeat_timeout, self._clock))
        # That the group rebalances is no news while it waits for this member, and the answer keeps the session alive.
        awaited = me.phase is Phase.DRAINING and refused is not None and refused.verdict is Verdict.REJOIN
        if refused is not None and not awaited:
            self._refused(refused)
            return
        self._pulse.well()
        if self._rounds.look_due():
            if why := self._rounds.outdated():
                self._post(SubscriptionChanged(why))
        elif me.phase is Phase.STABLE:
            # Not while draining: it may take half a session, and the hand-over has a deadline.
            self._listener.heard(me)

    def _refused(self, refused: Refused) -> None:
        self._pulse.refused(refused)
        self._post(refused)

    def _pause(self, rediscover: bool) -> None:
        if rediscover:
            self._coordinator.rediscover()
        deadline = Deadline.after(self._pulse.pause(), self._clock)
        with self._changed:
            self._changed.wait_for(lambda: self._state.phase is Phase.LEFT, deadline.remaining())
        self._next_heartbeat = self._clock()

    def _leave(self) -> None:
        """A static member does not leave: its next run, within the session, keeps the partitions."""
        if self._settings.instance_id is not None or not self._state.member_id:
            return
        deadline = Deadline.after(LEAVE_TIMEOUT, self._clock)
        refused = self._coordinator.leave(self._state.member_id, "the query ends", deadline)
        if refused is None:
            log.info("group %s: member %s left", self._settings.group_id, self._state.member_id)
        else:
            log.warning(
                "group %s: member %s may be seen until its session ends: %s",
                self._settings.group_id,
                self._state.member_id,
                refused.why,
            )
