"""Events and actions of the handshake of KIP-848, beside those of :mod:`spark_group_source.group.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from spark_group_source.group.events import Action, Event, Request, SessionExtended


class TopicIdPartition(NamedTuple):
    """One partition of a topic, by the topic's id: a recreated topic has another id."""

    topic_id: UUID
    partition: int


TopicIdPartitions = frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True)
class Report:
    """What a heartbeat says about a member; ``generation`` is its epoch, and below 0 the member joins."""

    generation: int
    topics: frozenset[str]
    owned: TopicIdPartitions = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered(SessionExtended):
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
class TopicsFound(Event):
    """A metadata lookup returned the names of these topics; a deleted topic has none."""

    names: Mapping[UUID, str]


@dataclass(frozen=True, slots=True)
class Subscribed(Event):
    """The query's subscription consists of these topics now."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Heartbeat(Request):
    """Send ConsumerGroupHeartbeat at once: it joins, or reports what has changed."""


@dataclass(frozen=True, slots=True)
class FindTopics(Action):
    """Look up the names of the subscribed topics: the assignment has one without a name."""
