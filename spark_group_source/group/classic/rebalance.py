"""A member's part in a rebalance: it joins with its topics, and syncs to get its assignment.

The leader also assigns the partitions of all members, and checks from time to time whether topics have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.errors import AuthenticationFailed, GroupSourceError, OptionError
from spark_group_source.group.classic.assignment import (
    Assignors,
    PartitionCounts,
    claimed_partitions,
    subscribed_topics,
)
from spark_group_source.group.classic.events import Joined
from spark_group_source.group.classic.membership_requests import JoinResult, MembershipRequests
from spark_group_source.group.coordinator_client import WhileWaiting
from spark_group_source.group.description import STABLE
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.membership import Membership
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.topic_view import TopicView
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster, Topic, partitions_of

log = logging.getLogger(__name__)

JOIN_SLACK = 10.0
"""Seconds beyond the rebalance timeout within which the broker must respond to a JoinGroup."""

DISPUTED_TOPICS_CHECK = 10.0
"""Seconds until the next check of the topics after brokers contradicted each other."""


class Rebalance:
    """The member's current rebalance and the topics it is about. All methods are for the member's thread."""

    def __init__(
        self,
        cluster: Cluster,
        requests: MembershipRequests,
        settings: GroupSettings,
        clock: Clock,
        wakeup: Wakeup | None = None,
    ) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self._wakeup = wakeup
        self._topic_view = TopicView(cluster, settings.group_id)
        self._requests = requests
        self._settings = settings
        self._clock = clock
        self._assignors = Assignors(settings.assignors, settings.rack)
        self._topics: frozenset[str] = frozenset()
        self._group_topics: frozenset[str] = frozenset()
        """Only for the leader: the subscribed topics of all members, also those that do not exist now."""
        self._partition_counts = PartitionCounts({})
        self._join_result: JoinResult | None = None
        self._next_topic_check = 0.0
        self._logged_reason = ""
        self._returned = None if settings.instance_id is not None else False
        """Whether this static member was in the group before and must check for unowned partitions; None: unknown."""

    @property
    def cooperative(self) -> bool:
        """Whether this member keeps its partitions through a rebalance."""
        return self._assignors.cooperative

    def subscribe(self, topics: Collection[str]) -> None:
        """Sets the topics of the first join. Caller: the query, before the member's thread starts."""
        self._topics = frozenset(topics)
        self._next_topic_check = self._clock() + self._settings.metadata_max_age

    def log_join(self, me: Membership) -> None:
        """Logs the reason of a join, once for joins in a row."""
        # The first JoinGroup of a member only returns its id; the second one joins.
        level = logging.INFO if me.member_id and me.reason != self._logged_reason else logging.DEBUG
        log.log(level, "group %s: joining, because %s", self._settings.group_id, me.reason)
        self._logged_reason = me.reason

    def log_generation(self, me: Membership) -> None:
        """Logs the generation that :meth:`sync` has completed, and the owned partitions."""
        assert self._join_result is not None, "a generation needs a join"
        self._logged_reason = ""
        joined, leader = self._join_result.joined, " (leader)" if self._join_result.leads else ""
        generation = f"{joined.generation} by {self._join_result.assignor}, member {joined.member_id}{leader}"
        owned = sorted(me.readable)
        listed = ": " + ", ".join(map(str, owned[:20])) + (", ..." if len(owned) > 20 else "") if owned else ""
        group_id = self._settings.group_id
        log.info("group %s: generation %s owns %d partition(s)%s", group_id, generation, len(owned), listed)

    def join(self, me: Membership, while_waiting: WhileWaiting) -> Joined | RequestFailed:
        """Joins the group; waits until all members have joined or the rebalance timeout has passed.

        Raises:
            Interrupted: the query ends.
        """
        if self._returned is None:
            self._returned = self._is_known_member()
        if self._returned is False and self.topic_check_due():
            self.reason_to_rejoin()  # also in a group that never stops rebalancing; the join has the topics found
        subscriptions = self._assignors.subscriptions(self._topics, me.owned, me.generation)
        deadline = self._within(self._settings.rebalance_timeout + JOIN_SLACK)
        result = self._requests.join(me, subscriptions, deadline, while_waiting)
        if isinstance(result, RequestFailed):
            return result
        self._join_result = result
        return result.joined

    def assign(self) -> dict[str, bytes] | RequestFailed:
        """Returns every member's assignment, encoded, by member id; empty unless this member assigns.

        Raises:
            AuthenticationFailed: a broker rejects this client.
            Interrupted: the query ends.
            OptionError: a user's assignor failed.
        """
        assert self._join_result is not None, "a sync follows a join"
        try:
            return self._assignments(self._join_result)
        except (OptionError, AuthenticationFailed):
            raise
        except GroupSourceError as error:
            return RequestFailed(ErrorAction.RETRY, f"the leader could not assign partitions: {error}")

    def sync(self, assignments: Mapping[str, bytes], while_waiting: WhileWaiting) -> Partitions | RequestFailed:
        """Sends the assignments that :meth:`assign` returned, and returns this member's own.

        Raises:
            Interrupted: the query ends.
            OptionError: a user's assignor failed.
        """
        assert self._join_result is not None, "a sync follows a join"
        # As in Kafka's client: the leader needs no more time, and if it dies the broker responds after its session.
        deadline = self._within(self._settings.request_timeout)
        assigned = self._requests.sync(self._join_result, assignments, deadline, while_waiting)
        if isinstance(assigned, RequestFailed):
            return assigned
        if self._returned is not False:
            self._next_topic_check = self._clock()
        self._assignors.assigned(self._join_result.assignor, assigned, self._join_result.joined.generation)
        return assigned

    def topic_check_due(self) -> bool:
        """Whether it is time to check the topics again."""
        return self._clock() >= self._next_topic_check

    def reason_to_rejoin(self) -> str:
        """Checks the topics, and returns why this member must rejoin; empty if it need not.

        The subscription may match other topics; the leader also sees new partitions of all members' topics. A returning
        static member checks for partitions without an owner: see :meth:`_unowned`.
        """
        self._next_topic_check = self._clock() + self._settings.metadata_max_age
        deadline = self._between_heartbeats()
        try:
            matching = self._settings.subscription.find(self._topic_view, deadline)
            topics = frozenset(matching)
            leads = self._join_result is not None and self._join_result.leads
            counts = self._look_up(self._group_topics | topics, deadline) if leads else self._partition_counts
            unowned = frozenset() if self._returned is False else self._unowned(matching, deadline)
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed: %s", self._settings.group_id, error)
            return ""
        if self._topic_view.disputed:
            self._next_topic_check = self._clock() + min(DISPUTED_TOPICS_CHECK, self._settings.metadata_max_age)
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
        return any(member.instance_id == self._settings.instance_id for member in group.members)

    def _unowned(self, topics: Mapping[str, Topic], deadline: Deadline) -> Partitions:
        """Partitions without an owner in a stable group; checked once, by a returning static member.

        Such a member gets its last assignment without a rebalance. If its former process died during a revocation, the
        partitions to revoke are in no assignment: the rebalance that would assign them never came. A new member does
        not check, because other members may still be revoking what it will get.
        """
        group = self._requests.describe(deadline)
        if isinstance(group, RequestFailed):
            log.warning("group %s: the group could not be described: %s", self._settings.group_id, group.reason)
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
        return self._within(self._settings.heartbeat_timeout)

    def _within(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock, self._wakeup)
