"""Events and actions of the classic handshake, beside those of :mod:`spark_group_source.group.events`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_group_source.group.events import Event, Request, SessionExtended
from spark_group_source.offsets import Partitions


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """JoinGroup succeeded: this member is in a new generation and does not know its assignment yet."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Synced(SessionExtended):
    """SyncGroup returned this member's assignment. ``session_ends`` as in :class:`HeartbeatSucceeded`."""

    assigned: Partitions
    session_ends: float = math.inf


@dataclass(frozen=True, slots=True)
class HeartbeatSucceeded(SessionExtended):
    """The coordinator knows this member in ``generation``.

    ``session_ends`` is when the coordinator may remove the member unless another heartbeat arrives: one session timeout
    after the heartbeat was *sent*, in seconds of the clock.
    """

    generation: int
    session_ends: float


@dataclass(frozen=True, slots=True)
class SubscriptionChanged(Event):
    """Topics or partition counts differ from the assignment, or some partitions have no owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class Join(Request):
    """Send JoinGroup, with the owned partitions."""


@dataclass(frozen=True, slots=True)
class Sync(Request):
    """Send SyncGroup; the leader adds every member's assignment."""
