"""The classic group protocol of one member: JoinGroup and SyncGroup, then heartbeats, and LeaveGroup."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_group_source.clock import Deadline
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
from spark_group_source.group.membership import NO_GENERATION, Action, Event, Heartbeat, Phase, RequestFailed, Tick
from spark_group_source.group.protocol import Apply, GroupProtocol, MemberContext, Outcome
from spark_group_source.group.topic_view import TopicView
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.text import names, printable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, partitions_of

log = logging.getLogger(__name__)


JOIN_SLACK = 10.0
"""Seconds beyond the rebalance timeout within which the broker must respond to a JoinGroup."""

MEMBERSHIP_ENDS = {ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID, ErrorAction.FATAL}
"""The actions that end the membership if a heartbeat leads to them. No pending request of the member can succeed after
that."""

DISPUTED_TOPICS_CHECK = 10.0
"""Seconds until the next check of the topics after brokers contradicted each other."""


class ClassicProtocol(GroupProtocol[ClassicMembership]):
    """The member's thread owns it, with its connections.

    Attributes:
        _session_ends: when the session ends: one session timeout after the last successful request was sent.
        _topics: the topics of the subscription.
        _group_topics: only for the leader, the subscribed topics of all members, even if they do not exist.
        _partition_counts: only for the leader, the partition counts of these topics.
        _returned: whether this static member was in the group before, and must check for partitions without an owner;
            ``None`` if unknown.
    """

    first = Join()

    def __init__(self, context: MemberContext) -> None:
        settings = context.settings
        # On a slow network a heartbeat just before the session ends would arrive too late.
        interval = min(settings.heartbeat_interval, settings.session_timeout / 2)
        self._assignors = Assignors(settings.assignors, settings.wire.rack)
        new = ClassicMembership(cooperative=self._assignors.cooperative, static=settings.instance_id is not None)
        super().__init__(context, new, interval)
        self.state_machine = step
        self._requests = MembershipRequests(context.cluster, settings, context.timings)
        self.client = self._requests.client
        self._topic_view = TopicView(context.cluster, settings.group_id)
        self._topics: frozenset[str] = frozenset()
        self._group_topics: frozenset[str] = frozenset()
        self._partition_counts = PartitionCounts({})
        self._join_result: JoinResult | None = None
        self._returned: bool | None = None
        if settings.instance_id is None:
            self._returned = False
        self._session_ends = 0.0

    def subscribe(self, topics: Mapping[str, Topic]) -> None:
        """See :meth:`GroupProtocol.subscribe`."""
        self._topics = frozenset(topics)
        self._topic_view.expect(partitions_of(topics.values()))
        self.next_topic_check = self.clock() + self.settings.wire.metadata_max_age

    def is_join(self, request: Action, me: ClassicMembership) -> bool:
        """See :meth:`GroupProtocol.is_join`."""
        return isinstance(request, Join)

    def send(self, request: Action, me: ClassicMembership, apply: Apply) -> Outcome:
        """See :meth:`GroupProtocol.send`."""
        match request:
            case Join():
                return self._join(me, apply)
            case Sync():
                return self._sync(me, apply)
            case Heartbeat():
                return self._heartbeat(me)
        raise AssertionError(f"unknown request: {request!r}")

    def _heartbeat(self, me: ClassicMembership) -> Outcome:
        """Sends a heartbeat. The outcome shows whether the session continues, and whether the group rebalances."""
        outcome = self._send_heartbeat(me)
        if me.phase is Phase.REVOKING and _rebalances(outcome.failure):
            # The group waits for the revocation of this member, which joins when that is complete.
            return Outcome(outcome.events)
        return outcome

    def _send_heartbeat(self, me: ClassicMembership, *, join_or_sync_pending: bool = False) -> Outcome:
        """Sends a heartbeat; the session is extended if the coordinator knows ``me``."""
        session_ends = self.clock() + self.settings.session_timeout
        deadline = self.within(self.settings.heartbeat_timeout)
        failure = self._requests.heartbeat(me, deadline, join_or_sync_pending=join_or_sync_pending)
        # Only members get REBALANCE_IN_PROGRESS: it keeps the session too.
        if failure is None or _rebalances(failure):
            self._session_ends = session_ends
            return Outcome((HeartbeatSucceeded(me.generation, session_ends),), failure)
        return Outcome(failure=failure)

    def _while_join_or_sync_waits(self, me: ClassicMembership, apply: Apply) -> WhileWaiting:
        """Heartbeats on the second connection, to check that the coordinator still knows ``me``.

        A pending JoinGroup or SyncGroup proves nothing: it may be lost, and other members may own the partitions by
        now.
        """

        def heartbeat() -> RequestFailed | None:
            now = apply(Tick())
            if now.generation != me.generation:
                return RequestFailed(ErrorAction.REDISCOVER, now.reason)
            failure = self._check_coordinator(me, apply)
            if failure is not None and failure.action in MEMBERSHIP_ENDS:
                return failure
            if self._requests.coordinator_moved:
                return RequestFailed(ErrorAction.REDISCOVER, "another broker is the group's coordinator now")
            return None

        return WhileWaiting(heartbeat, self.settings.heartbeat_interval)

    def _check_coordinator(self, me: ClassicMembership, apply: Apply) -> RequestFailed | None:
        """Asks whether the coordinator still knows ``me``. For a new member, only looks up which broker is the
        coordinator."""
        if me.generation == NO_GENERATION:
            # The coordinator accepts no heartbeat of a new member before its join is complete.
            return self._requests.find_coordinator(self.within(self.settings.heartbeat_timeout))
        outcome = self._send_heartbeat(me, join_or_sync_pending=True)
        for event in outcome.events:
            apply(event)
        return outcome.failure

    def check_topics(self, me: ClassicMembership) -> Event | None:
        """See :meth:`GroupProtocol.check_topics`."""
        reason = self._reason_to_rejoin()
        if not reason:
            return None
        return SubscriptionChanged(reason)

    def rediscover(self) -> None:
        """See :meth:`GroupProtocol.rediscover`."""
        self._requests.rediscover()

    def leave(self, me: ClassicMembership, cluster: Cluster | None = None) -> None:
        """See :meth:`GroupProtocol.leave`.

        A static member leaves only with ``static_leaves``: its next run within a session gets the same partitions.
        """
        stays = self.settings.instance_id is not None and not self.settings.static_leaves
        if stays or not me.member_id:
            return
        requests = self._requests
        if cluster is not None:
            requests = MembershipRequests(cluster, self.settings)
        self.retry_leave(me.member_id, lambda deadline: requests.leave(me.member_id, "the query ends", deadline))

    def _join(self, me: ClassicMembership, apply: Apply) -> Outcome:
        """Joins the group; waits until all members have joined or the rebalance timeout has passed."""
        if self._returned is None:
            self._returned = self._is_known_member()
        if self._returned is False and self.clock() >= self.next_topic_check:
            self._reason_to_rejoin()  # also in a group that never stops rebalancing; the join has the topics found
        subscriptions = self._assignors.subscriptions(self._topics, me.owned, me.generation)
        deadline = self.within(self.settings.rebalance_timeout + JOIN_SLACK)
        result = self._requests.join(me, subscriptions, deadline, self._while_join_or_sync_waits(me, apply))
        if isinstance(result, RequestFailed):
            return Outcome(failure=result)
        self._join_result = result
        return Outcome((result.joined,))

    def _sync(self, me: ClassicMembership, apply: Apply) -> Outcome:
        """Sends SyncGroup, which returns this member's assignment. The leader sends every member's assignment with
        it."""
        assert self._join_result is not None, "a sync follows a join"
        assignment = self._assignment(self._join_result, me, apply)
        if isinstance(assignment, RequestFailed):
            return Outcome(failure=assignment)
        if self._returned is not False:
            self.next_topic_check = self.clock()
        joined, assignor = self._join_result.joined, self._join_result.assignor
        self._assignors.assigned(assignor, assignment.partitions, joined.generation, assignment.user_data)
        return Outcome((Synced(assignment.partitions, self._session_ends),))

    def note_answer(self, answer: Event, before: ClassicMembership, after: ClassicMembership) -> bool:
        """See :meth:`GroupProtocol.note_answer`. Each generation has an assignment."""
        if not isinstance(answer, Synced):
            return False
        assert self._join_result is not None, "a sync follows a join"
        joined, assignor = self._join_result.joined, self._join_result.assignor
        leader = ""
        if self._join_result.leads:
            leader = " (leader)"
        generation = f"{joined.generation} by {printable(assignor)}, member {printable(joined.member_id)}{leader}"
        listed = ""
        if after.readable:
            listed = f": {names(after.readable)}"
        group_id = self.settings.group_id
        log.info("group %s: generation %s, owns %d partition(s)%s", group_id, generation, len(after.readable), listed)
        return True

    def _assignment(self, join_result: JoinResult, me: ClassicMembership, apply: Apply) -> Assignment | RequestFailed:
        """Returns this member's assignment. If this member assigns, it first sends the assignments of all members."""
        try:
            assignments = self._assignments(join_result)
        except (OptionError, AuthenticationFailed):
            raise
        except GroupSourceError as error:
            return RequestFailed(ErrorAction.RETRY, f"the leader could not assign partitions: {error}")
        # As in Kafka's client: the leader needs no more time, and if it dies, the broker responds when its session
        # ends.
        deadline = self.within(self.settings.wire.request_timeout)
        self._session_ends = self.clock() + self.settings.session_timeout
        while_waiting = self._while_join_or_sync_waits(me, apply)
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
            counts, unowned = self._partition_counts, frozenset[TopicPartition]()
            if self._is_leader():
                counts = self._look_up(self._group_topics | topics, deadline)
            if self._returned is not False:
                unowned = self._unowned(matching, deadline)
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed, will retry: %s", self.settings.group_id, error)
            return ""
        if self._topic_view.disputed:
            self.next_topic_check = self.clock() + min(DISPUTED_TOPICS_CHECK, self.settings.wire.metadata_max_age)
        changed = counts != self._partition_counts or topics != self._topics
        self._topics = topics
        if changed:
            return "topics or their partitions changed"
        if unowned:
            return f"{names(unowned)} have no owner"
        return ""

    def _is_leader(self) -> bool:
        return self._join_result is not None and self._join_result.leads

    def _is_known_member(self) -> bool | None:
        """Whether the group has this static member already; ``None`` if the group could not be described."""
        group = self._requests.describe(self._between_heartbeats())
        if isinstance(group, RequestFailed) or group.members_hidden:
            return None
        return self.settings.instance_id in {member.instance_id for member in group.members}

    def _unowned(self, topics: Mapping[str, Topic], deadline: Deadline) -> Partitions:
        """Partitions without an owner in a stable group; checked once, by a returning static member.

        Such a member gets its last assignment without a rebalance. If its former process died during a revocation, the
        partitions to revoke are in no assignment: the rebalance that would assign them never came. A new member does
        not check, because other members may still be revoking the partitions that it will get.
        """
        group = self._requests.describe(deadline)
        if isinstance(group, RequestFailed):
            log.warning("group %s: cannot describe the group, will retry: %s", self.settings.group_id, group.reason)
            return frozenset()
        self._returned = False
        if group.state != STABLE:
            return frozenset()
        unowned = set(partitions_of(topic for topic in topics.values() if not topic.error))
        for member in group.members:
            unowned -= member.partitions
        return frozenset(unowned)

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


def _rebalances(failure: RequestFailed | None) -> bool:
    """Whether a heartbeat failed only because the group rebalances."""
    return failure is not None and failure.action is ErrorAction.REJOIN
