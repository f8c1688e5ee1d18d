"""The group protocol of KIP-848 of one member: heartbeats, which also join, acknowledge and leave."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.errors import (
    GROUP_ID_NOT_FOUND,
    TOPIC_AUTHORIZATION_FAILED,
    UNRELEASED_INSTANCE_ID,
    GroupError,
    GroupSourceError,
    RetriableError,
)
from spark_group_source.grace import Permission
from spark_group_source.group.consumer.messages import build_leave, build_request, interpret
from spark_group_source.group.consumer.session_timeout import session_timeout
from spark_group_source.group.consumer.states import (
    ConsumerMembership,
    FindTopics,
    Heartbeat,
    Subscribed,
    TopicsFound,
    step,
)
from spark_group_source.group.coordinator import LATE_REQUESTS, CoordinatorClient
from spark_group_source.group.error_actions import ErrorAction, fatal
from spark_group_source.group.membership import NO_GENERATION, Action, Phase, RequestFailed
from spark_group_source.group.protocol import GroupProtocol
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.group.topic_view import TopicView
from spark_group_source.text import names, printable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, partitions_of
from spark_group_source.wire.stale_metadata import known_ids

if TYPE_CHECKING:
    from spark_group_source.group.member import Member

log = logging.getLogger(__name__)


PURPOSE = "membership"
"""The connection of heartbeats; commits have their own."""

MIN_WAIT = 1.0
"""Minimum seconds for a lookup or a heartbeat on the member's thread, also if the brokers' interval is shorter."""

HEARTBEAT_INTERVAL = 5.0
"""Seconds between two heartbeats until a response says otherwise: the brokers' default."""

JOIN_INTERVAL = 1.0
"""Seconds between two heartbeats after a join without partitions, until the other members have sent a heartbeat: the
partitions come as those revoke them. Coordinators of Kafka 4.3 and later also assign only once a second by default."""


DENIED_TOPICS_CHECK = 10.0
"""Seconds until the next check of topics that this client may not describe."""


class ConsumerProtocol(GroupProtocol):
    """The member's thread owns it, with its connections.

    ``_permissions`` has DESCRIBE on each topic that the subscription lacks because it is denied.
    ``_joined`` tells whether a join was sent: the coordinator may have the member even if it has not answered.
    ``_joining_until`` is when a join without partitions ends, in seconds of the clock. Until then the listener is
    notified of partitions only; ``_has_assignment`` tells whether it was. ``_session_timeout`` is the group's in
    seconds, if the brokers have said it (``_session_source``), or else the brokers' default. Until ``_late_until`` a
    heartbeat that got no answer may still arrive.
    """

    first = Heartbeat()

    def __init__(
        self,
        member: Member,
        cluster: Cluster,
        settings: GroupSettings,
        clock: Clock,
        wakeup: Wakeup,
        timings: Timings | None,
    ) -> None:
        initial = ConsumerMembership(member_id=str(uuid.uuid4()))
        super().__init__(member, initial, settings, HEARTBEAT_INTERVAL, clock, wakeup)
        self.state_machine = step
        self._cluster = cluster
        self._topic_view = TopicView(cluster, settings.group_id)
        self.client = CoordinatorClient(cluster, settings.group_id, PURPOSE, timings, settings.coordinator)
        if settings.subscription.pattern is not None:
            self.next_topic_check = clock() + settings.wire.metadata_max_age
        self._session_timeout = settings.session_timeout
        self._session_source = ""
        self._joined = False
        self._late_until = -math.inf
        self._has_assignment = False
        self._joining_until = 0.0
        self._permissions: dict[str, Permission] = {}

    def subscribe(self, topics: Mapping[str, Topic]) -> None:
        """See :meth:`GroupProtocol.subscribe`."""
        self._topic_view.expect(partitions_of(topics.values()))
        self.member.post(Subscribed(frozenset(topics)))

    def send(self, request: Action) -> None:
        """Sends a heartbeat at once, or looks up topics."""
        match request:
            case Heartbeat():
                self.heartbeat()
            case FindTopics():
                self._find_topics(self._until_heartbeat(self.within(self.settings.heartbeat_timeout)))

    def start_positions_deadline(self) -> Deadline:
        """See :meth:`GroupProtocol.start_positions_deadline`."""
        return self._until_heartbeat(super().start_positions_deadline())

    def leave(self, cluster: Cluster | None = None) -> None:
        """See :meth:`GroupProtocol.leave`.

        A static member without ``static_leaves`` says that it comes back: its next run, within the session timeout,
        gets the same partitions. Otherwise that run could not take the instance id before the session ends.
        """
        if not self._joined:
            return
        client = self.client if cluster is None else CoordinatorClient(cluster, self.settings.group_id, PURPOSE)
        request = build_leave(self.member.membership, self.settings)

        def send(deadline: Deadline) -> RequestFailed | None:
            return self._failure(client.call(request, deadline), client)

        self.retry_leave(send)

    def heartbeat(self) -> bool:
        """See :meth:`GroupProtocol.heartbeat`. It tells the coordinator what has changed."""
        joins = self.member.membership.phase is Phase.JOINING
        if joins:
            self._prepare_join()
        me, sent_at = self.member.membership, self.clock()
        # A late heartbeat may have been told an assignment. The coordinator repeats it only to a full report.
        to_report = replace(me, answered=None) if sent_at < self._late_until else me
        response = self.client.call(build_request(to_report, self.settings), self._heartbeat_deadline(me))
        if failure := self._failure(response, self.client, joins=me.phase is Phase.JOINING):
            self._heartbeat_failed(failure, getattr(response, "error_code", 0), joins)
            return False
        self.client.confirm_generation()
        self.heartbeats.record_success(joined=not joins)
        self._was_member = True
        answer = interpret(response, me.report, sent_at + self._session_timeout)
        self.member.post(answer)
        self.heartbeats.interval = answer.heartbeat_interval
        self.heartbeats.schedule_next()
        after = self.member.membership
        if after.generation == NO_GENERATION:
            return False  # everything was lost before the answer came: a join follows
        if joins:
            self._has_assignment = False
            others = 0.0 if after.assignment else answer.heartbeat_interval + JOIN_INTERVAL
            self._joining_until = self.clock() + others
        self._assignment_answered(me, after)
        if joins:
            self._look_up_session()
        return True

    def _heartbeat_failed(self, failure: RequestFailed, error_code: int, joins: bool) -> None:
        """Handles a heartbeat without an answer, or one that was rejected with this error code."""
        if error_code == TOPIC_AUTHORIZATION_FAILED:
            failure = self._leave_out_denied(failure)
        if joins and (failure.action is ErrorAction.RESET_GENERATION or error_code == UNRELEASED_INSTANCE_ID):
            self._leave_former_epoch(error_code)
        if failure.unanswered:
            self._late_until = self.clock() + LATE_REQUESTS
        self.request_failed(failure)

    def _look_up_session(self) -> None:
        """Asks for the group's session timeout, of which heartbeats say nothing."""
        deadline = self._until_heartbeat(self.within(MIN_WAIT))
        found = session_timeout(self.client, self.settings.group_id, deadline)
        if found is None and self._session_source == "":
            log.info(
                "group %s: the brokers do not say the group's session timeout (DESCRIBE_CONFIGS on the group or the"
                " cluster), %.0f s are assumed",
                self.settings.group_id,
                self._session_timeout,
            )
        self._session_source = "assumed" if found is None else "brokers"
        self._session_timeout = self._session_timeout if found is None else found

    def _assignment_answered(self, before: ConsumerMembership, after: ConsumerMembership) -> None:
        """Notifies the listener of a new assignment. Spark may ask only once what there is to read, so a query should
        not plan while the partitions of its first assignment are on their way.
        """
        joining = self.clock() < self._joining_until
        if joining:
            self.heartbeats.schedule_next(JOIN_INTERVAL)
        if after.assignment != before.assignment or not (self._has_assignment or joining):
            self._has_assignment = True
            self._log_assignment(after)
            self.assignment_received()

    def _leave_former_epoch(self, error_code: int) -> None:
        """Removes what the coordinator still has of this member: it rejected a join, because it has the member in an
        epoch that the member does not know. Otherwise brokers before Kafka 4.2 would reject each join until the
        session ends, and all brokers each join with an instance id
        (``GroupMetadataManager.throwIfInstanceIdIsUnreleased``), also of the member that has it. For another member's
        instance id the coordinator rejects this as well.
        """
        for_good = replace(self.settings, static_leaves=error_code != UNRELEASED_INSTANCE_ID)
        request = build_leave(self.member.membership, for_good)
        self.client.call(request, self.within(self.settings.heartbeat_timeout))

    def _prepare_join(self) -> None:
        self.begin_join()
        if not self._joined:
            # The first assignment then need not wait for a lookup; until the join, no session can end.
            self._find_topics(self.within(self.settings.heartbeat_timeout))
        self._joined = True

    def _log_assignment(self, me: ConsumerMembership) -> None:
        owned = f"{len(me.readable)} partition(s)" + (f": {names(me.readable)}" if me.readable else "")
        member = printable(me.member_id)
        log.info("group %s: epoch %d, member %s, owns %s", self.settings.group_id, me.generation, member, owned)

    def _find_topics(self, deadline: Deadline) -> None:
        """Looks up the subscribed topics, among which are those in the assignment."""
        wanted = self.member.membership.topics
        try:
            topics = self._cluster.metadata(wanted, deadline).topics
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed: %s", self.settings.group_id, error)
            return
        found = {UUID(topic.id): name for name, topic in topics.items() if topic.id and not topic.error}
        before = self.member.membership
        if any(topic_id not in found for topic_id, _ in before.assignment):
            # The broker may lag behind the coordinator.
            found |= {UUID(topic_id): name for name, topic_id in known_ids(self._cluster, wanted, deadline) if topic_id}
        self.member.post(TopicsFound(found))
        if self.member.membership.owned != before.owned:
            self._log_assignment(self.member.membership)

    def check_topics(self) -> None:
        """See :meth:`GroupProtocol.check_topics`. A pattern needs this: the coordinator itself finds partitions."""
        self.next_topic_check = self.clock() + self.settings.wire.metadata_max_age
        deadline = self._until_heartbeat(self.within(self.settings.heartbeat_timeout))
        try:
            topics = self.settings.subscription.find(self._topic_view, deadline)
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed: %s", self.settings.group_id, error)
            return
        denied = {name for name, topic in topics.items() if topic.error == TOPIC_AUTHORIZATION_FAILED}
        if denied or self.settings.subscription.pattern is None:
            self.next_topic_check = self.clock() + DENIED_TOPICS_CHECK if denied else math.inf
        for name in self._permissions.keys() & topics.keys() - denied:
            self._permissions.pop(name).granted()
        self.member.post(Subscribed(frozenset(topics) - denied))

    def _leave_out_denied(self, failure: RequestFailed) -> RequestFailed:
        """Subscribes without the topics that this client may not describe; returns the failure to report.

        The coordinator rejects each heartbeat that names such a topic, and does not say which one it is.
        """
        error = failure.error
        if not isinstance(error, GroupError) or not (self._was_member or self.settings.subscription.pattern):
            return failure
        deadline = self._until_heartbeat(self.within(self.settings.heartbeat_timeout))
        subscribed = self.member.membership.topics
        try:
            found = self._cluster.metadata(subscribed, deadline).topics
            denied = {name for name, topic in found.items() if topic.error == TOPIC_AUTHORIZATION_FAILED}
            self._record_denied(denied, error)
        except RetriableError as unknown:
            return RequestFailed(ErrorAction.RETRY, str(unknown))
        except GroupError as final:
            return RequestFailed(ErrorAction.FATAL, str(final), error=final)
        self.member.post(Subscribed(subscribed - denied))
        self.next_topic_check = min(self.next_topic_check, self.clock() + DENIED_TOPICS_CHECK)
        return RequestFailed(ErrorAction.RETRY, failure.reason)

    def _record_denied(self, topics: Collection[str], error: GroupError) -> None:
        optional = self.settings.subscription.pattern is not None
        for topic in sorted(topics):
            if topic not in self._permissions:
                name = f"DESCRIBE on topic '{topic}'"
                self._permissions[topic] = Permission(name, optional=optional, clock=self.clock)
                self._permissions[topic].granted()  # when the member joined
            self._permissions[topic].denied(error)

    def _failure(self, response: Any, client: CoordinatorClient, *, joins: bool = False) -> RequestFailed | None:
        if isinstance(response, RequestFailed):
            return response
        error_code, message = response.error_code, response.error_message
        if not error_code:
            return None
        if error_code == GROUP_ID_NOT_FOUND and joins:
            # A join creates a group that was deleted: this group exists, and the coordinator does not convert it.
            error = fatal("ConsumerGroupHeartbeat", self.settings.group_id, error_code, broker_message=message)
            return RequestFailed(ErrorAction.FATAL, str(error), error=error)
        topics = self.member.membership.topics if error_code == TOPIC_AUTHORIZATION_FAILED else ()
        return client.failure("ConsumerGroupHeartbeat", error_code, topics=topics, broker_message=message)

    def _heartbeat_deadline(self, me: ConsumerMembership) -> Deadline:
        """A heartbeat after an answered one waits for one interval: a lost answer leaves time for another heartbeat.

        The brokers' session may be shorter than the one that the member assumes. The other heartbeat may need a new
        connection, so it has more time.
        """
        deadline = self.within(self.settings.heartbeat_timeout)
        return deadline if me.answered is None else deadline.at_most(max(MIN_WAIT, self.heartbeats.interval))

    def _until_heartbeat(self, deadline: Deadline) -> Deadline:
        """Ends a lookup on the member's thread when the next heartbeat is due.

        Brokers accept any session timeout above the heartbeat interval, and members learn only the interval.
        """
        return deadline.at_most(max(MIN_WAIT, self.heartbeats.next_heartbeat - self.clock()))
