"""The classic group protocol of one member: JoinGroup and SyncGroup, then heartbeats."""

from __future__ import annotations

from collections.abc import Collection

from spark_group_source.clock import Clock, Wakeup
from spark_group_source.group.classic.events import Join, SubscriptionChanged, Sync, Synced
from spark_group_source.group.classic.handshake import ClassicMembership, step
from spark_group_source.group.classic.heartbeats import Heartbeats
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.classic.rebalance import Rebalance
from spark_group_source.group.counters import Timings
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import Action, RequestFailed, Tick
from spark_group_source.group.group_protocol import GroupProtocol
from spark_group_source.group.membership import NO_GENERATION, Phase
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster


class ClassicProtocol(GroupProtocol):
    """The member's thread owns it, with its connections."""

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        listener: RebalanceListener,
        clock: Clock,
        wakeup: Wakeup,
        timings: Timings | None,
    ) -> None:
        super().__init__(settings, settings.heartbeat_interval, listener, clock, wakeup)
        self._requests = MembershipRequests(cluster, settings, timings)
        self._rebalance = Rebalance(cluster, self._requests, settings, clock, wakeup)
        start = ClassicMembership(cooperative=self._rebalance.cooperative)
        self.shared = SharedMembership(settings, clock, step, start, Join(), listener.uncommitted)
        self._heartbeats = Heartbeats(self._requests, self.shared, settings, clock, wakeup)

    def subscribe(self, topics: Collection[str]) -> None:
        """See :meth:`GroupProtocol.subscribe`."""
        self._rebalance.subscribe(topics)

    def send(self, request: Action) -> None:
        """Joins or syncs."""
        match request:
            case Join():
                self._join()
            case Sync():
                self._sync()

    def keep_alive(self) -> None:
        """See :meth:`GroupProtocol.keep_alive`."""
        self.shared.post(Tick())
        me = self.shared.membership
        if me.phase not in (Phase.STABLE, Phase.REVOKING):
            return
        if not self.schedule.try_acquire(self._requests.throttled) or self._heartbeat(me):
            self.retry()

    def _heartbeat(self, me: ClassicMembership) -> bool:
        """Sends a heartbeat, then checks topics if that is due; whether there is time for retries."""
        failure = self._heartbeats.send(me)
        # While a revocation is pending, the group waits for this member: REBALANCE_IN_PROGRESS keeps the session alive.
        if failure is not None and not (me.phase is Phase.REVOKING and failure.action is ErrorAction.REJOIN):
            self.request_failed(failure)
            return False
        self.heartbeat_state.record_success()
        self.join_backoff.reset()
        if me.phase is Phase.REVOKING or not self._rebalance.topic_check_due():  # a revocation has a deadline
            return True
        if reason := self._rebalance.reason_to_rejoin():
            self.shared.post(SubscriptionChanged(reason))
        return False

    def rediscover(self) -> None:
        """See :meth:`GroupProtocol.rediscover`."""
        self._requests.rediscover()

    def leave(self, cluster: Cluster | None = None) -> None:
        """See :meth:`GroupProtocol.leave`.

        A static member leaves only with ``static_leaves``: its next run, within the session timeout, gets the same
        partitions.
        """
        member_id = self.shared.membership.member_id
        stays = self.settings.instance_id is not None and not self.settings.static_leaves
        if stays or not member_id:
            return
        requests = self._requests if cluster is None else MembershipRequests(cluster, self.settings)
        self.retry_leave(lambda deadline: requests.leave(member_id, "the query ends", deadline))

    def _join(self) -> None:
        self.join_backoff.wait()
        me = self.shared.membership
        self._rebalance.log_join(me)
        self.listener.join_started()
        joined = self._rebalance.join(me, self._heartbeats.while_join_or_sync_waits(me))
        if isinstance(joined, RequestFailed):
            self.request_failed(joined)
        else:
            self.shared.post(joined)

    def _sync(self) -> None:
        assigned: Partitions | RequestFailed
        assignments = self._rebalance.assign()
        if isinstance(assignments, RequestFailed):
            assigned = assignments
        else:
            self._heartbeats.note_sync_sent()
            while_waiting = self._heartbeats.while_join_or_sync_waits(self.shared.membership)
            assigned = self._rebalance.sync(assignments, while_waiting)
        if isinstance(assigned, RequestFailed):
            self.request_failed(assigned)
            return
        self.heartbeat_state.record_success()
        self.schedule.schedule_next()
        self.shared.post(Synced(assigned, self._heartbeats.session_ends))
        if self.shared.membership.generation == NO_GENERATION:
            return  # the session timed out before the response came: a join follows
        self._rebalance.log_generation(self.shared.membership)
        self.assignment_received()
