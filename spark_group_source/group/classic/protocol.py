"""The classic group protocol of one member: JoinGroup and SyncGroup, then heartbeats, and LeaveGroup.

Heartbeats normally go over the connection of the other membership requests. While a JoinGroup or SyncGroup is pending
there, they are sent on a second connection.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.errors import AuthenticationFailed, GroupSourceError, OptionError
from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.group.classic.assignment import Assignment, Assignors, claimed_partitions, subscribed_topics
from spark_group_source.group.classic.messages import JoinResult, MembershipRequests
from spark_group_source.group.classic.states import (
    ClassicMembership,
    HeartbeatSucceeded,
    Join,
    SubscriptionChanged,
    Sync,
    Synced,
    step,
)
from spark_group_source.group.coordinator import WhileWaiting
from spark_group_source.group.description import STABLE
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import NO_GENERATION, Action, Membership, Phase, RequestFailed, Tick
from spark_group_source.group.protocol import GroupProtocol
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.group.topic_view import TopicView
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.text import names, printable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, partitions_of

if TYPE_CHECKING:
    from spark_group_source.group.member import Member

log = logging.getLogger(__name__)


JOIN_SLACK = 10.0
"""Seconds beyond the rebalance timeout within which the broker must respond to a JoinGroup."""

DISPUTED_TOPICS_CHECK = 10.0
"""Seconds until the next check of the topics after brokers contradicted each other."""


class ClassicProtocol(GroupProtocol):
    """The member's thread owns it, with its connections.

    Attributes:
        _session_ends: when the session ends according to the last successful request: one session after it was sent.
        _topics: the topics of the subscription.
        _group_topics: only for the leader, the subscribed topics of all members, also those that do not exist now.
        _partition_counts: only for the leader, the partition counts of these topics.
        _returned: whether this static member was in the group and must check for unowned partitions, if known.
    """

    first = Join()

    def __init__(
        self,
        member: Member,
        cluster: Cluster,
        settings: GroupSettings,
        clock: Clock,
        wakeup: Wakeup,
        timings: Timings | None,
    ) -> None:
        # On a slow network a heartbeat just before the session ends would arrive too late.
        interval = min(settings.heartbeat_interval, settings.session_timeout / 2)
        self._assignors = Assignors(settings.assignors, settings.wire.rack)
        initial = ClassicMembership(cooperative=self._assignors.cooperative)
        super().__init__(member, initial, settings, interval, clock, wakeup)
        self.state_machine = step
        self._requests = MembershipRequests(cluster, settings, timings)
        self.client = self._requests.client
        self._topic_view = TopicView(cluster, settings.group_id)
        self._topics: frozenset[str] = frozenset()
        self._group_topics: frozenset[str] = frozenset()
        self._partition_counts = PartitionCounts({})
        self._join_result: JoinResult | None = None
        self._returned = None if settings.instance_id is not None else False
        self._session_ends = 0.0

    def subscribe(self, topics: Mapping[str, Topic]) -> None:
        """See :meth:`GroupProtocol.subscribe`."""
        self._topics = frozenset(topics)
        self._topic_view.expect(partitions_of(topics.values()))
        self.next_topic_check = self.clock() + self.settings.wire.metadata_max_age

    def send(self, request: Action) -> None:
        """Joins or syncs."""
        match request:
            case Join():
                self._join()
            case Sync():
                self._sync()

    def _send_heartbeat(self, me: Membership, *, join_or_sync_pending: bool = False) -> RequestFailed | None:
        """Sends a heartbeat, and extends the session if the coordinator knows ``me``; ``None`` if it succeeded."""
        session_ends = self.clock() + self.settings.session_timeout
        deadline = self.within(self.settings.heartbeat_timeout)
        failure = self._requests.heartbeat(me, deadline, join_or_sync_pending=join_or_sync_pending)
        # Only members get REBALANCE_IN_PROGRESS: it keeps the session too.
        if failure is None or failure.action is ErrorAction.REJOIN:
            self._session_ends = session_ends
            self.member.post(HeartbeatSucceeded(me.generation, session_ends))
        return failure

    def _while_join_or_sync_waits(self, me: Membership) -> WhileWaiting:
        """Heartbeats on the second connection, to check that the coordinator still knows ``me``.

        A pending JoinGroup or SyncGroup proves nothing: it may be lost, and other members own the partitions by now.
        """

        def heartbeat() -> RequestFailed | None:
            self.member.post(Tick())
            if self.member.membership.generation != me.generation:
                return RequestFailed(ErrorAction.REDISCOVER, self.member.membership.reason)
            # The coordinator accepts no heartbeat of a new member before its join is complete.
            joins_as_new = me.generation == NO_GENERATION
            failure = self._find_coordinator() if joins_as_new else self._send_heartbeat(me, join_or_sync_pending=True)
            if failure is not None and failure.action in (
                ErrorAction.RESET_GENERATION,
                ErrorAction.RESET_MEMBER_ID,
                ErrorAction.FATAL,
            ):
                return failure
            if self._requests.coordinator_moved:
                return RequestFailed(ErrorAction.REDISCOVER, "another broker is the group's coordinator now")
            return None

        return WhileWaiting(heartbeat, self.settings.heartbeat_interval)

    def _find_coordinator(self) -> RequestFailed | None:
        return self._requests.find_coordinator(self.within(self.settings.heartbeat_timeout))

    def heartbeat(self) -> bool:
        """See :meth:`GroupProtocol.heartbeat`."""
        me = self.member.membership
        failure = self._send_heartbeat(me)
        # While a revocation is pending, the group waits for this member: REBALANCE_IN_PROGRESS keeps the session alive.
        if failure is not None and not (me.phase is Phase.REVOKING and failure.action is ErrorAction.REJOIN):
            self.request_failed(failure)
            return False
        self.heartbeats.record_success(joined=True)
        return True

    def check_topics(self) -> None:
        """See :meth:`GroupProtocol.check_topics`."""
        if reason := self._reason_to_rejoin():
            self.member.post(SubscriptionChanged(reason))

    def rediscover(self) -> None:
        """See :meth:`GroupProtocol.rediscover`."""
        self._requests.rediscover()

    def leave(self, cluster: Cluster | None = None) -> None:
        """See :meth:`GroupProtocol.leave`.

        A static member leaves only with ``static_leaves``: its next run within a session gets the same partitions.
        """
        member_id = self.member.membership.member_id
        stays = self.settings.instance_id is not None and not self.settings.static_leaves
        if stays or not member_id:
            return
        requests = self._requests if cluster is None else MembershipRequests(cluster, self.settings)
        self.retry_leave(lambda deadline: requests.leave(member_id, "the query ends", deadline))

    def _join(self) -> None:
        """Joins the group; waits until all members have joined or the rebalance timeout has passed."""
        self.begin_join()
        me = self.member.membership
        if self._returned is None:
            self._returned = self._is_known_member()
        if self._returned is False and self.clock() >= self.next_topic_check:
            self._reason_to_rejoin()  # also in a group that never stops rebalancing; the join has the topics found
        subscriptions = self._assignors.subscriptions(self._topics, me.owned, me.generation)
        deadline = self.within(self.settings.rebalance_timeout + JOIN_SLACK)
        result = self._requests.join(me, subscriptions, deadline, self._while_join_or_sync_waits(me))
        if isinstance(result, RequestFailed):
            self.request_failed(result)
            return
        self._join_result = result
        self.member.post(result.joined)

    def _sync(self) -> None:
        """Syncs: as the leader with every member's assignment. Then this member's own is known."""
        assert self._join_result is not None, "a sync follows a join"
        assignment = self._assignment(self._join_result)
        if isinstance(assignment, RequestFailed):
            self.request_failed(assignment)
            return
        if self._returned is not False:
            self.next_topic_check = self.clock()
        joined, assignor = self._join_result.joined, self._join_result.assignor
        self._assignors.assigned(assignor, assignment.partitions, joined.generation, assignment.user_data)
        self.heartbeats.record_success()
        self.heartbeats.schedule_next()
        self.member.post(Synced(assignment.partitions, self._session_ends))
        me = self.member.membership
        if me.generation == NO_GENERATION:
            return  # the session timed out before the response came: a join follows
        leader = " (leader)" if self._join_result.leads else ""
        generation = f"{joined.generation} by {printable(assignor)}, member {printable(joined.member_id)}{leader}"
        listed = f": {names(me.readable)}" if me.readable else ""
        group_id = self.settings.group_id
        log.info("group %s: generation %s owns %d partition(s)%s", group_id, generation, len(me.readable), listed)
        self.assignment_received()

    def _assignment(self, join_result: JoinResult) -> Assignment | RequestFailed:
        """Sends the assignments of all members if this one assigns, and returns its own."""
        try:
            assignments = self._assignments(join_result)
        except (OptionError, AuthenticationFailed):
            raise
        except GroupSourceError as error:
            return RequestFailed(ErrorAction.RETRY, f"the leader could not assign partitions: {error}")
        # As in Kafka's client: the leader needs no more time, and if it dies the broker responds after its session.
        deadline = self.within(self.settings.wire.request_timeout)
        self._session_ends = self.clock() + self.settings.session_timeout
        while_waiting = self._while_join_or_sync_waits(self.member.membership)
        return self._requests.sync(join_result, assignments, deadline, while_waiting)

    def _reason_to_rejoin(self) -> str:
        """Checks the topics, and returns why this member must rejoin; empty if it need not.

        The subscription may match other topics; the leader also sees new partitions of all members' topics. A returning
        static member checks for partitions without an owner: see :meth:`_unowned`.
        """
        self.next_topic_check = self.clock() + self.settings.wire.metadata_max_age
        deadline = self._between_heartbeats()
        try:
            matching = self.settings.subscription.find(self._topic_view, deadline)
            topics = frozenset(matching)
            leads = self._join_result is not None and self._join_result.leads
            counts = self._look_up(self._group_topics | topics, deadline) if leads else self._partition_counts
            unowned = frozenset() if self._returned is False else self._unowned(matching, deadline)
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed: %s", self.settings.group_id, error)
            return ""
        if self._topic_view.disputed:
            self.next_topic_check = self.clock() + min(DISPUTED_TOPICS_CHECK, self.settings.wire.metadata_max_age)
        changed = counts != self._partition_counts or topics != self._topics
        self._topics = topics
        if changed:
            return "topics or their partitions changed"
        return f"{names(unowned)} have no owner" if unowned else ""

    def _is_known_member(self) -> bool | None:
        """Whether the group has this static member already; ``None`` if the group could not be described."""
        group = self._requests.describe(self._between_heartbeats())
        if isinstance(group, RequestFailed) or group.members_hidden:
            return None
        return any(member.instance_id == self.settings.instance_id for member in group.members)

    def _unowned(self, topics: Mapping[str, Topic], deadline: Deadline) -> Partitions:
        """Partitions without an owner in a stable group; checked once, by a returning static member.

        Such a member gets its last assignment without a rebalance. If its former process died during a revocation, the
        partitions to revoke are in no assignment: the rebalance that would assign them never came. A new member does
        not check, because other members may still be revoking what it will get.
        """
        group = self._requests.describe(deadline)
        if isinstance(group, RequestFailed):
            log.warning("group %s: the group could not be described: %s", self.settings.group_id, group.reason)
            return frozenset()
        self._returned = False
        if group.state != STABLE:
            return frozenset()
        owned = frozenset[TopicPartition]().union(*(member.partitions for member in group.members))
        return partitions_of(topic for topic in topics.values() if not topic.error) - owned

    def _assignments(self, join_result: JoinResult) -> dict[str, bytes]:
        """Every member's assignment, from new metadata: old metadata would leave new partitions without an owner."""
        if join_result.leads:
            self._group_topics = self._topics | subscribed_topics(join_result.members)
            self._topic_view.expect(claimed_partitions(join_result.members))
            self._partition_counts = self._look_up(self._group_topics, self._between_heartbeats())
        if not join_result.assigns:
            return {}
        return self._assignors.assign(join_result.assignor, join_result.members, self._partition_counts)

    def _look_up(self, topics: frozenset[str], deadline: Deadline) -> PartitionCounts:
        return PartitionCounts.of(self._topic_view.metadata(topics, deadline))

    def _between_heartbeats(self) -> Deadline:
        """The deadline of a request that delays the next heartbeat."""
        return self.within(self.settings.heartbeat_timeout)
