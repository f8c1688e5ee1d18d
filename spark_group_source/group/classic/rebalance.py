"""The rounds of a group, as one member takes part in them: it joins with its topics, and syncs to learn its share.

As the leader it makes everybody's share, and looks from time to time whether topics are still as they were assigned.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.errors import AuthenticationFailed, GroupSourceError, OptionError
from spark_group_source.group.classic import assignment
from spark_group_source.group.classic.membership_requests import JoinResult, MembershipRequests
from spark_group_source.group.coordinator_client import Watch
from spark_group_source.group.description import STABLE
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import Joined, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership
from spark_group_source.group.topic_view import TopicView
from spark_group_source.listing import names
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, partitions_of

log = logging.getLogger(__name__)

JOIN_SLACK = 10.0
"""Seconds beyond the rebalance timeout in which the broker must have answered a JoinGroup."""

DISPUTED_LOOK = 10.0
"""Seconds until the topics are looked at again after brokers contradicted each other."""


class Rebalance:
    """The round that a member is in, and what it was about. All methods are for the member's thread."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: MembershipRequests,
        settings: GroupSettings,
        clock: Clock,
        wakeup: Wakeup | None = None,
    ) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self._wakeup = wakeup
        self._topic_view = TopicView(cluster, settings.group_id)
        self._cluster = cluster
        self._coordinator = coordinator
        self._settings = settings
        self._clock = clock
        self._assignors = assignment.Assignors(settings.assignors, settings.rack)
        self._topics: frozenset[str] = frozenset()
        self._watched: frozenset[str] = frozenset()
        """The topics of all members, where this one leads: also those that do not exist now."""
        self._layout = assignment.PartitionCounts({})
        self._round: JoinResult | None = None
        self._next_look = 0.0
        self._is_back = None if settings.instance_id is not None else False
        """Whether this is a static member that was in the group and has not looked what it left; None: not known."""

    @property
    def cooperative(self) -> bool:
        """Whether partitions that stay with this member are kept through a rebalance."""
        return self._assignors.cooperative

    def subscribe(self, topics: Collection[str]) -> None:
        """These are the topics of the first round. Caller: the query, before the member's thread begins."""
        self._topics = frozenset(topics)
        self._next_look = self._clock() + self._settings.metadata_max_age

    def join(self, me: Membership, watch: Watch) -> Joined | RequestFailed:
        """Joins the group; waits until all members have, up to the rebalance timeout.

        Raises:
            Interrupted: the query ends.
        """
        if self._is_back is None:
            self._is_back = self._known()
        if self._is_back is False and self.look_due():
            self.outdated()  # a group that always rebalances leaves no other time; the join is about what it finds
        subscriptions = self._assignors.subscriptions(self._topics, me.owned, me.generation)
        deadline = self._within(self._settings.rebalance_timeout + JOIN_SLACK)
        answer = self._coordinator.join(me, subscriptions, deadline, watch)
        if isinstance(answer, RequestFailed):
            return answer
        self._round = answer
        return answer.joined

    def assign(self) -> dict[str, bytes] | RequestFailed:
        """Everybody's share of the round that was joined where this member is to assign; of nobody otherwise.

        Raises:
            AuthenticationFailed: a broker does not let this client in.
            Interrupted: the query ends.
            OptionError: a user's assignor failed.
        """
        assert self._round is not None, "a sync follows a join"
        try:
            return self._shares(self._round)
        except (OptionError, AuthenticationFailed):
            raise
        except GroupSourceError as error:
            return RequestFailed(ErrorAction.RETRY, f"the assignment could not be made: {error}")

    def sync(self, shares: Mapping[str, bytes], watch: Watch) -> Partitions | RequestFailed:
        """Learns this member's share of the round it has joined, and tells everybody's as :meth:`assign` made them.

        Raises:
            Interrupted: the query ends.
            OptionError: a user's assignor failed.
        """
        assert self._round is not None, "a sync follows a join"
        # As in Kafka's own client: the leader has all it needs, and where it dies the broker answers after its session.
        deadline = self._within(self._settings.request_timeout)
        answer = self._coordinator.sync(self._round, shares, deadline, watch)
        if isinstance(answer, RequestFailed):
            return answer
        if self._is_back is not False:
            self._next_look = self._clock()
        self._assignors.assigned(self._round.assignor, answer, self._round.joined.generation)
        return answer

    def __str__(self) -> str:
        assert self._round is not None, "there is a round after a join"
        joined, leads = self._round.joined, " (leader)" if self._round.leads else ""
        return f"{joined.generation} by {self._round.assignor}, member {joined.member_id}{leads}"

    def look_due(self) -> bool:
        """Whether it is time to look at the topics again."""
        return self._clock() >= self._next_look

    def outdated(self) -> str:
        """Why another round is needed, empty where none is.

        Topics match now that did not, or, as the leader sees it, partitions were added to any of the group's; the next
        round is about those. Or this is a static member that is back, and nobody owns some: see :meth:`_unowned`.
        """
        self._next_look = self._clock() + self._settings.metadata_max_age
        deadline = self._between_heartbeats()
        try:
            found = self._settings.subscription.find(self._topic_view, deadline)
            topics = frozenset(found)
            leads = self._round is not None and self._round.leads
            layout = self._look(self._watched | topics, deadline) if leads else self._layout
            unowned = frozenset() if self._is_back is False else self._unowned(found, deadline)
        except GroupSourceError as error:
            log.warning("group %s: the topics could not be looked at: %s", self._settings.group_id, error)
            return ""
        if self._topic_view.disputed:
            self._next_look = self._clock() + min(DISPUTED_LOOK, self._settings.metadata_max_age)
        changed = layout != self._layout or topics != self._topics
        self._topics = topics
        if changed:
            return "topics or their partitions changed"
        return f"nobody owns {names(unowned)}" if unowned else ""

    def _known(self) -> bool | None:
        """Whether the group knows this static member already, ``None`` where that cannot be seen now."""
        found = self._coordinator.describe(self._between_heartbeats())
        if isinstance(found, RequestFailed):
            return None
        return any(each.instance_id == self._settings.instance_id for each in found.members)

    def _unowned(self, topics: Mapping[str, Topic], deadline: Deadline) -> Partitions:
        """Partitions without an owner in a group that does not rebalance; looked for once.

        A static member gets its last share when it is back, without a new round. Where its former self died while it
        gave partitions up, these are in nobody's share: that was to be settled by the round for which it did not live.
        A new member does not look: what it is to get may still be read by a batch, and is given up without it.
        """
        found = self._coordinator.describe(deadline)
        if isinstance(found, RequestFailed):
            log.warning("group %s: the group's shares could not be seen: %s", self._settings.group_id, found.why)
            return frozenset()
        self._is_back = False
        if found.state != STABLE:
            return frozenset()
        owned = frozenset[TopicPartition]().union(*(each.partitions for each in found.members))
        return partitions_of(topic for topic in topics.values() if not topic.error) - owned

    def _shares(self, turn: JoinResult) -> dict[str, bytes]:
        """Everybody's share where this member is to assign, from metadata asked for now: stale ones would leave new
        partitions to nobody."""
        if turn.leads:
            self._watched = self._topics | assignment.subscribed_topics(turn.members)
            self._topic_view.expect(assignment.claimed_partitions(turn.members))
            self._layout = self._look(self._watched, self._between_heartbeats())
        if not turn.assigns:
            return {}
        return self._assignors.assign(turn.assignor, turn.members, self._layout)

    def _between_heartbeats(self) -> Deadline:
        """When an answer must be there that this thread waits for while it should heartbeat."""
        return self._within(self._settings.heartbeat_timeout)

    def _within(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self._clock, self._wakeup)

    def _look(self, topics: frozenset[str], deadline: Deadline) -> assignment.PartitionCounts:
        return assignment.PartitionCounts.of(self._topic_view.metadata(topics, deadline))
