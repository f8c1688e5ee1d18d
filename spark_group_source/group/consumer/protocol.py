"""The group protocol of KIP-848 of one member: heartbeats, which also join, acknowledge and leave."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from spark_group_source.clock import Deadline
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
from spark_group_source.group.consumer.session_timeout import SessionTimeout
from spark_group_source.group.consumer.states import (
    ConsumerMembership,
    FindTopics,
    HeartbeatAnswered,
    SessionTimeoutFound,
    Subscribed,
    TopicsFound,
    step,
)
from spark_group_source.group.coordinator import LATE_REQUESTS, MEMBERSHIP, CoordinatorClient
from spark_group_source.group.error_actions import ErrorAction, fatal
from spark_group_source.group.membership import NO_GENERATION, Action, Event, Heartbeat, Phase, RequestFailed
from spark_group_source.group.protocol import Apply, GroupProtocol, MemberContext, Outcome
from spark_group_source.group.topic_view import TopicView
from spark_group_source.text import names, printable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, denied_topics, partitions_of
from spark_group_source.wire.stale_metadata import known_ids

log = logging.getLogger(__name__)


MIN_WAIT = 1.0
"""Minimum seconds for a lookup or a heartbeat on the member's thread, even if the brokers' interval is shorter."""

HEARTBEAT_INTERVAL = 5.0
"""Seconds between two heartbeats until a response names the interval: the brokers' default."""

JOIN_INTERVAL = 1.0
"""Seconds between two heartbeats after a join without partitions, until the other members have sent a heartbeat: the
partitions come as the other members revoke them. By default, coordinators of Kafka 4.3 and later assign only once a
second."""


DENIED_TOPICS_CHECK = 10.0
"""Seconds until the next check of topics that this client may not describe."""


class ConsumerProtocol(GroupProtocol[ConsumerMembership]):
    """The member's thread owns it, with its connections.

    ``_permissions`` has the permission DESCRIBE on each topic that is left out of the subscription because it is
    denied. ``_was_member`` is whether a heartbeat was ever accepted. ``_joined`` is whether a join was sent: the
    coordinator may have the member in the group even without an answer. ``_joining_until`` is when a join without
    partitions ends, in seconds of the clock. Until then, the listener is only notified of an assignment with
    partitions; ``_has_assignment`` is whether it was. Until ``_late_until``, a heartbeat without an answer may still
    arrive. ``_answered_epoch`` is the epoch in the last answer to a heartbeat, and that heartbeat was sent at
    ``_answered_at``.
    """

    first = Heartbeat()

    def __init__(self, context: MemberContext) -> None:
        settings = context.settings
        super().__init__(context, ConsumerMembership(member_id=str(uuid.uuid4())), HEARTBEAT_INTERVAL)
        self.state_machine = step
        self._cluster = context.cluster
        self._topic_view = TopicView(context.cluster, settings.group_id)
        self.client = CoordinatorClient(
            context.cluster, settings.group_id, MEMBERSHIP, context.timings, settings.coordinator
        )
        if settings.subscription.pattern is not None:
            self.next_topic_check = context.clock() + settings.wire.metadata_max_age
        self._session_timeout = SessionTimeout(
            settings.group_id, settings.session_timeout, settings.wire.metadata_max_age, context.clock
        )
        self._was_member = False
        self._joined = False
        self._late_until = -math.inf
        self._answered_epoch = NO_GENERATION
        self._answered_at = -math.inf
        self._has_assignment = False
        self._joining_until = 0.0
        self._permissions: dict[str, Permission] = {}

    def subscribe(self, topics: Mapping[str, Topic]) -> Event:
        """See :meth:`GroupProtocol.subscribe`."""
        self._topic_view.expect(partitions_of(topics.values()))
        return Subscribed(frozenset(topics))

    def is_join(self, request: Action, me: ConsumerMembership) -> bool:
        """See :meth:`GroupProtocol.is_join`. The first heartbeat joins."""
        return isinstance(request, Heartbeat) and me.phase is Phase.JOINING

    def send(self, request: Action, me: ConsumerMembership, apply: Apply) -> Outcome:
        """See :meth:`GroupProtocol.send`. No request waits at the broker, so ``apply`` is not needed."""
        match request:
            case Heartbeat():
                return self._heartbeat(me)
            case FindTopics():
                deadline = self._until_heartbeat(self.within(self.settings.heartbeat_timeout))
                return Outcome(self._find_topics(me, deadline))
        raise AssertionError(f"unknown request: {request!r}")

    def start_positions_deadline(self) -> Deadline:
        """See :meth:`GroupProtocol.start_positions_deadline`."""
        return self._until_heartbeat(super().start_positions_deadline())

    def leave(self, me: ConsumerMembership, cluster: Cluster | None = None) -> None:
        """See :meth:`GroupProtocol.leave`.

        A static member without ``static_leaves`` announces that it comes back: its next run, within the session
        timeout, gets the same partitions. Otherwise that run could not take the instance id before the session ends.
        """
        if not self._joined:
            return
        client = self.client
        if cluster is not None:
            client = CoordinatorClient(cluster, self.settings.group_id, MEMBERSHIP)
        request = build_leave(me, self.settings)

        def send(deadline: Deadline) -> RequestFailed | None:
            return self._failure(client.call(request, deadline), client, me)

        self.retry_leave(me.member_id, send)

    def _heartbeat(self, me: ConsumerMembership) -> Outcome:
        """Sends a heartbeat, which joins the group or reports what has changed. The answer contains a changed
        assignment."""
        found = self._prepare_join(me)
        sent_at = self.clock()
        request = build_request(self._to_report(me, sent_at), self.settings)
        response = self.client.call(request, self._heartbeat_deadline(me))
        failure = self._failure(response, self.client, me)
        if failure is not None:
            rejected = self._heartbeat_failed(me, failure, getattr(response, "error_code", 0))
            return Outcome((*found, *rejected.events), rejected.failure)
        self.client.confirm_generation()
        self._was_member = True
        self._answered_epoch, self._answered_at = response.member_epoch, sent_at
        answer = interpret(response, me.report, sent_at + self._session_timeout.seconds)
        self.heartbeats.interval = answer.heartbeat_interval
        return Outcome((*found, answer))

    def _to_report(self, me: ConsumerMembership, sent_at: float) -> ConsumerMembership:
        """Makes the next heartbeat report everything while a late heartbeat may still arrive. The lost answer may have
        contained an assignment, which the coordinator repeats only to a full report."""
        if sent_at < self._late_until:
            return replace(me, answered=None)
        return me

    def _heartbeat_failed(self, me: ConsumerMembership, failure: RequestFailed, error_code: int) -> Outcome:
        """Handles a heartbeat without an answer, or one that was rejected with this error code."""
        outcome = Outcome(failure=failure)
        if error_code == TOPIC_AUTHORIZATION_FAILED:
            outcome = self._leave_out_denied(me, failure)
        if me.phase is Phase.JOINING and _has_former_epoch(outcome.failure, error_code):
            self._leave_former_epoch(me, error_code)
        if outcome.failure is not None and outcome.failure.unanswered:
            self._late_until = self.clock() + LATE_REQUESTS
        return outcome

    def note_answer(self, answer: Event, before: ConsumerMembership, after: ConsumerMembership) -> bool:
        """See :meth:`GroupProtocol.note_answer`. Spark may call latestOffset() only once, so a query should not plan
        before the partitions of its first assignment have arrived.
        """
        match answer:
            case TopicsFound() if after.owned != before.owned:
                self._log_assignment(after)
            case HeartbeatAnswered() if self._is_new_assignment(answer, before, after):
                self._has_assignment = True
                self._log_assignment(after)
                return True
        return False

    def _is_new_assignment(
        self, answer: HeartbeatAnswered, before: ConsumerMembership, after: ConsumerMembership
    ) -> bool:
        if before.phase is Phase.JOINING:
            self._begin_assignment(answer, after)
        joining = self.clock() < self._joining_until
        if joining:
            self.heartbeats.schedule_next(JOIN_INTERVAL)
        if after.assignment != before.assignment:
            return True
        return not self._has_assignment and not joining

    def _begin_assignment(self, answer: HeartbeatAnswered, after: ConsumerMembership) -> None:
        """Notes that a join was accepted. A join without partitions ends when the other members have had time to send a
        heartbeat."""
        self._has_assignment = False
        others = 0.0
        if not after.assignment:
            others = answer.heartbeat_interval + JOIN_INTERVAL
        self._joining_until = self.clock() + others

    def notified(self, joined: bool) -> Event | None:
        """See :meth:`GroupProtocol.notified`: looks up the group's session timeout, which no answer contains.

        A timeout that differs from the assumed one applies to the present session at once, because no further heartbeat
        may succeed.
        """
        if joined:
            self._session_timeout.joined()
        if not self._session_timeout.is_due():
            return None
        assumed = self._session_timeout.seconds
        self._session_timeout.look_up(self.client, self._until_heartbeat(self.within(MIN_WAIT)))
        found = self._session_timeout.seconds
        if found == assumed:
            return None
        return SessionTimeoutFound(self._answered_epoch, self._answered_at + found)

    def _leave_former_epoch(self, me: ConsumerMembership, error_code: int) -> None:
        """Removes this member from the group. The coordinator rejected a join, because it has the member in an epoch
        that the member does not know.

        Otherwise brokers before Kafka 4.2 would reject each join until the session ends, and all brokers would reject
        each join with an instance id (``GroupMetadataManager.throwIfInstanceIdIsUnreleased``), even of the member that
        has this id. If another member has the instance id, the coordinator rejects the removal as well.
        """
        for_good = replace(self.settings, static_leaves=error_code != UNRELEASED_INSTANCE_ID)
        self.client.call(build_leave(me, for_good), self.within(self.settings.heartbeat_timeout))

    def _prepare_join(self, me: ConsumerMembership) -> tuple[Event, ...]:
        """Looks up the topics before the first join, so that its assignment need not wait for the lookup."""
        if me.phase is not Phase.JOINING or self._joined:
            return ()
        found = self._find_topics(me, self.within(self.settings.heartbeat_timeout))  # no session can end before a join
        self._joined = True
        return found

    def _log_assignment(self, me: ConsumerMembership) -> None:
        listed = ""
        if me.readable:
            listed = f": {names(me.readable)}"
        owned = f"{len(me.readable)} partition(s){listed}"
        member = printable(me.member_id)
        log.info("group %s: epoch %d, member %s, owns %s", self.settings.group_id, me.generation, member, owned)

    def _find_topics(self, me: ConsumerMembership, deadline: Deadline) -> tuple[Event, ...]:
        """Looks up the subscribed topics, among which are those in the assignment."""
        try:
            topics = self._cluster.metadata(me.topics, deadline).topics
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed, will retry: %s", self.settings.group_id, error)
            return ()
        found: dict[UUID, str] = {}
        for name, topic in topics.items():
            if topic.id and not topic.error:
                found[UUID(topic.id)] = name
        if {topic_id for topic_id, _ in me.assignment} - found.keys():
            # The broker may lag behind the coordinator.
            for name, known_id in known_ids(self._cluster, me.topics, deadline):
                if known_id:
                    found[UUID(known_id)] = name
        return (TopicsFound(found),)

    def check_topics(self, me: ConsumerMembership) -> Event | None:
        """See :meth:`GroupProtocol.check_topics`. Patterns and denied topics need this check. The coordinator itself
        finds new partitions of subscribed topics."""
        self.next_topic_check = self.clock() + self.settings.wire.metadata_max_age
        deadline = self._until_heartbeat(self.within(self.settings.heartbeat_timeout))
        try:
            topics = self.settings.subscription.find(self._topic_view, deadline)
        except GroupSourceError as error:
            log.warning("group %s: the topic lookup failed, will retry: %s", self.settings.group_id, error)
            return None
        denied = denied_topics(topics)
        if denied:
            self.next_topic_check = self.clock() + DENIED_TOPICS_CHECK
        elif self.settings.subscription.pattern is None:
            self.next_topic_check = math.inf
        for name in self._permissions.keys() & topics.keys() - denied:
            self._permissions.pop(name).record_granted()
        return Subscribed(frozenset(topics) - denied)

    def _leave_out_denied(self, me: ConsumerMembership, failure: RequestFailed) -> Outcome:
        """Subscribes without the topics that this client may not describe; returns the failure to report.

        The coordinator rejects each heartbeat that names such a topic, and does not say which one it is.
        """
        error = failure.error
        may_go_without = self._was_member or self.settings.subscription.pattern
        if not isinstance(error, GroupError) or not may_go_without:
            return Outcome(failure=failure)
        deadline = self._until_heartbeat(self.within(self.settings.heartbeat_timeout))
        try:
            denied = denied_topics(self._cluster.metadata(me.topics, deadline).topics)
            self._record_denied(denied, error)
        except RetriableError as unknown:
            return Outcome(failure=RequestFailed(ErrorAction.RETRY, str(unknown)))
        except GroupError as final:
            return Outcome(failure=RequestFailed.final(final))
        self.next_topic_check = min(self.next_topic_check, self.clock() + DENIED_TOPICS_CHECK)
        return Outcome((Subscribed(me.topics - denied),), RequestFailed(ErrorAction.RETRY, failure.reason))

    def _record_denied(self, topics: Collection[str], error: GroupError) -> None:
        optional = self.settings.subscription.pattern is not None
        for topic in sorted(topics):
            if topic not in self._permissions:
                name = f"DESCRIBE on topic '{topic}'"
                self._permissions[topic] = Permission(name, optional=optional, clock=self.clock)
                self._permissions[topic].record_granted()  # when the member joined
            self._permissions[topic].record_denied(error)

    def _failure(self, response: Any, client: CoordinatorClient, me: ConsumerMembership) -> RequestFailed | None:
        """The failure of a heartbeat of ``me``, which joins if its phase is JOINING; ``None`` if it was accepted."""
        if isinstance(response, RequestFailed):
            return response
        error_code, message = response.error_code, response.error_message
        if not error_code:
            return None
        if error_code == GROUP_ID_NOT_FOUND and me.phase is Phase.JOINING:
            # A join creates a group that was deleted: this group exists, and the coordinator does not convert it.
            error = fatal("ConsumerGroupHeartbeat", self.settings.group_id, error_code, broker_message=message)
            return RequestFailed.final(error)
        topics: Collection[str] = ()
        if error_code == TOPIC_AUTHORIZATION_FAILED:
            topics = me.topics
        return client.failure("ConsumerGroupHeartbeat", error_code, topics=topics, broker_message=message)

    def _heartbeat_deadline(self, me: ConsumerMembership) -> Deadline:
        """How long a heartbeat waits for its answer.

        If the heartbeat before was answered, this one waits for one interval only. If its answer is lost, there is
        still time for another heartbeat before the session ends, even if the brokers' session is shorter than the
        member assumes. The heartbeat after an unanswered one may need a new connection, so it waits for longer.
        """
        deadline = self.within(self.settings.heartbeat_timeout)
        if me.answered is None:
            return deadline
        return deadline.at_most(max(MIN_WAIT, self.heartbeats.interval))

    def _until_heartbeat(self, deadline: Deadline) -> Deadline:
        """Ends a lookup on the member's thread when the next heartbeat is due.

        Brokers accept any session timeout above the heartbeat interval, and members learn only the interval.
        """
        return deadline.at_most(max(MIN_WAIT, self.heartbeats.next_heartbeat - self.clock()))


def _has_former_epoch(failure: RequestFailed | None, error_code: int) -> bool:
    """Whether a join was rejected because the coordinator has the member, or its instance id, in another epoch."""
    if error_code == UNRELEASED_INSTANCE_ID:
        return True
    return failure is not None and failure.action is ErrorAction.RESET_GENERATION
