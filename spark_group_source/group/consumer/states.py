"""The state machine of a KIP-848 membership: heartbeats report what the member owns, and their responses assign
partitions. Pure.

      ┌───────── fenced or unknown, or the session timed out ◀──────┐
      ▼                                                             │
    JOINING ──HeartbeatAnswered──▶ STABLE ──────────────────▶ REVOKING
                                     ▲      smaller assignment      │     a running batch reads partitions to revoke:
                                     └──────── Heartbeat ◀──────────┘     heartbeats continue until it is committed

:func:`step` takes an event and returns the new state and the actions to perform. The functions that both protocols
share (:mod:`.membership`) decide about the partitions. This protocol acknowledges a revocation with an immediate
heartbeat. A member joins with epoch 0, under an id that it chooses and keeps. Its first heartbeat reports everything,
later heartbeats only what has changed since the last answer. After a failure, the next heartbeat reports everything,
because the failed heartbeat may have arrived, and another broker may be the coordinator.

The coordinator names partitions by topic id. The partitions of a topic are not owned until a lookup returns the topic's
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from spark_group_source.group import membership as common
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import (
    Acknowledge,
    Action,
    Assigned,
    AssignmentAnswered,
    AwaitBackoff,
    Event,
    Heartbeat,
    Membership,
    Phase,
    RequestFailed,
    without_acknowledgements,
)
from spark_group_source.offsets import TopicPartition


class TopicIdPartition(NamedTuple):
    """One partition of a topic, by the topic's id: a recreated topic has another id."""

    topic_id: UUID
    partition: int


TopicIdPartitions = frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True)
class Report:
    """The report about a member in a heartbeat. ``generation`` is the member's epoch; below 0, the member joins."""

    generation: int
    topics: frozenset[str]
    owned: TopicIdPartitions = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered(AssignmentAnswered):
    """The coordinator answered a heartbeat without an error.

    ``sent`` is the report of that heartbeat, ``epoch`` the member's epoch from now on. ``assignment`` is ``None`` if it
    has not changed. ``heartbeat_interval`` is in seconds. ``session_ends`` is when the coordinator may remove the
    member unless another heartbeat arrives: one session timeout after the heartbeat was *sent*, in the clock's seconds.
    """

    sent: Report
    epoch: int
    assignment: TopicIdPartitions | None
    heartbeat_interval: float
    session_ends: float


@dataclass(frozen=True, slots=True)
class SessionTimeoutFound(Event):
    """The brokers returned a session timeout that differs from the one known before.

    ``session_ends`` is the end of the present session, as in :class:`HeartbeatAnswered`, with the timeout found. The
    session belongs to the member with the epoch ``generation``.
    """

    generation: int
    session_ends: float


@dataclass(frozen=True, slots=True)
class TopicsFound(Event):
    """A metadata lookup returned the names of these topics; a deleted topic has none."""

    names: Mapping[UUID, str]


@dataclass(frozen=True, slots=True)
class Subscribed(Event):
    """The query's subscription now consists of these topics."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class FindTopics(Action):
    """Look up the names of the subscribed topics, because the assignment has a topic without a name."""


@dataclass(frozen=True, slots=True)
class ConsumerMembership(Membership):
    """``generation`` is the member epoch. ``topics`` is the subscription.

    ``assignment`` is the last assignment from the coordinator. ``topic_names`` has the names that the last lookup
    found, and those that the member still needs. ``answered`` is the last report that the coordinator has answered,
    ``None`` if the next heartbeat has to report everything.
    """

    topics: frozenset[str] = frozenset()
    assignment: TopicIdPartitions = frozenset()
    topic_names: Mapping[UUID, str] = field(default_factory=dict)
    answered: Report | None = None

    @property
    def report(self) -> Report:
        """The report in the next heartbeat."""
        owned = frozenset(TopicIdPartition(self.topic_ids[tp.topic], tp.partition) for tp in self.owned)
        return Report(self.generation, self.topics, owned)


Step = tuple[ConsumerMembership, list[Action]]


def step(membership: ConsumerMembership, event: Event, now: float, revocation_timeout: float) -> Step:
    """As :func:`spark_group_source.group.classic.states.step`, with the events of this protocol."""
    if membership.ended:
        return membership, []
    match event:
        case HeartbeatAnswered(sent) if sent.generation != membership.generation:
            return membership, []  # the partitions were lost while the heartbeat was pending: a join follows
        case HeartbeatAnswered():
            return _find_topics(_assign(_answered(membership, event), now + revocation_timeout))
        case SessionTimeoutFound(generation) if generation != membership.generation:
            return membership, []  # the next session begins with the timeout found
        case SessionTimeoutFound():
            return replace(membership, session_ends=event.session_ends), []
        case TopicsFound(names):
            return _assign(_found(membership, names), now + revocation_timeout)
        case Subscribed(topics) if topics == membership.topics:
            return membership, []
        case Subscribed(topics):
            return replace(membership, topics=topics), [Heartbeat()]
        case RequestFailed():
            return _request_failed(replace(membership, answered=None), event)
        case _:
            return _acknowledge(common.step(membership, event, now))


def _answered(membership: ConsumerMembership, event: HeartbeatAnswered) -> ConsumerMembership:
    """The membership after an accepted heartbeat, before it reconciles the partitions that it owns."""
    phase, assignment = membership.phase, membership.assignment
    if phase is Phase.JOINING:
        phase = Phase.STABLE
    if event.assignment is not None:
        assignment = event.assignment
    # The coordinator waits for a report without the partitions that it takes back, even if they never had a name here.
    taken_back = membership.assignment - assignment
    answered: Report | None = event.sent
    if not taken_back <= membership.report.owned:
        answered = None
    return replace(
        membership,
        phase=phase,
        generation=event.epoch,
        assignment=assignment,
        answered=answered,
        session_ends=event.session_ends,
    )


def _found(membership: ConsumerMembership, names: Mapping[UUID, str]) -> ConsumerMembership:
    """Takes the names that a lookup found, and keeps earlier names that the member still needs."""
    needed = {topic_id for topic_id, _ in membership.assignment}
    needed.update(membership.topic_ids.values())
    kept = dict(names)
    for topic_id, name in membership.topic_names.items():
        if topic_id in needed:
            kept.setdefault(topic_id, name)
    return replace(membership, topic_names=kept)


def _assign(membership: ConsumerMembership, revoke_by: float) -> Step:
    """Reconciles the owned partitions with the assignment, as far as its topics are known.

    That is also done after an answer without an assignment, because the partitions of a recreated topic wait until
    those of the former topic are revoked.
    """
    if membership.phase is Phase.JOINING:
        return membership, []
    owned_ids = {tp.topic: membership.topic_ids[tp.topic] for tp in membership.owned}
    topic_ids = dict(owned_ids)
    assigned: set[TopicPartition] = set()
    for topic_id, number in membership.assignment:
        name = membership.topic_names.get(topic_id)
        # The partitions of a deleted topic have to be revoked before those of the new topic with its name are assigned.
        if name is not None and owned_ids.get(name, topic_id) == topic_id:
            assigned.add(TopicPartition(name, number))
            topic_ids[name] = topic_id
    return _acknowledge(common.assign(replace(membership, topic_ids=topic_ids), frozenset(assigned), revoke_by))


def _find_topics(step: Step) -> Step:
    """Looks up topics without a name after each answer, since a lookup may fail or come too early."""
    membership, actions = step
    for topic_id, _ in membership.assignment:
        if topic_id not in membership.topic_names:
            return membership, [*actions, FindTopics()]
    return membership, actions


def _acknowledge(decided: Step) -> Step:
    """Adds an immediate heartbeat, which reports new and revoked partitions, or joins again after a loss."""
    membership, actions = decided
    for action in actions:
        if isinstance(action, Acknowledge | Assigned):
            return _forget_if_lost(membership), [*without_acknowledgements(actions), Heartbeat()]
    return decided


def _forget_if_lost(membership: ConsumerMembership) -> ConsumerMembership:
    """A member that joins again has no assignment, and reports everything."""
    if membership.phase is not Phase.JOINING:
        return membership
    return replace(membership, assignment=frozenset(), answered=None)


def _request_failed(membership: ConsumerMembership, failure: RequestFailed) -> Step:
    match failure.action:
        case ErrorAction.RESET_GENERATION | ErrorAction.RESET_MEMBER_ID:
            # The member has chosen its id: it joins again with the same one.
            return _acknowledge(common.lose(membership, failure.reason))
        case ErrorAction.FATAL:
            return common.fail(membership, failure)
        case _:
            return membership, [AwaitBackoff(rediscover=failure.action is ErrorAction.REDISCOVER), Heartbeat()]
