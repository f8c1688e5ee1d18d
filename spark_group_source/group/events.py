"""Inputs and outputs of the membership's state machine: :func:`spark_group_source.group.state.step` takes an event and
returns actions for the member's thread."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.offsets import Partitions


@dataclass(frozen=True, slots=True)
class Joined:
    """JoinGroup succeeded: this member is in a new generation and does not know its assignment yet."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Synced:
    """SyncGroup returned this member's assignment. ``session_ends`` as in :class:`HeartbeatSucceeded`."""

    assigned: Partitions
    session_ends: float = math.inf


@dataclass(frozen=True, slots=True)
class HeartbeatSucceeded:
    """The coordinator knows this member in ``generation``.

    ``session_ends`` is when the coordinator may remove the member unless another heartbeat arrives: one session timeout
    after the heartbeat was *sent*, in seconds of the clock.
    """

    generation: int
    session_ends: float


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The coordinator returned an error, or no response arrived. ``error`` is set if the action is FATAL."""

    action: ErrorAction
    reason: str
    member_id: str = ""
    error: GroupSourceError | None = None


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """Spark got a batch. ``partitions`` have uncommitted work; those that the batch reads are among them."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class BatchCompleted:
    """The batch is completed and committed, except for ``uncommitted`` partitions."""

    uncommitted: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    """Topics or partition counts differ from the assignment, or some partitions have no owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: a revocation or the session may have timed out."""


@dataclass(frozen=True, slots=True)
class Close:
    """The query ends."""


Event = (
    Joined
    | Synced
    | HeartbeatSucceeded
    | RequestFailed
    | BatchPlanned
    | BatchCompleted
    | SubscriptionChanged
    | Tick
    | Close
)


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup, with the owned partitions."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup; the leader adds every member's assignment."""


@dataclass(frozen=True, slots=True)
class AwaitBackoff:
    """Wait for the retry backoff before the next request. ``rediscover``: then find the coordinator first."""

    rediscover: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """Send LeaveGroup."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Notify the listener: these partitions are owned from now on."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Revoked:
    """Notify the listener: these partitions are revoked. The batch that reads ``late`` ones did not end in time."""

    partitions: Partitions
    late: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Lost:
    """Notify the listener: these partitions are lost, and none of their offsets may be committed."""

    partitions: Partitions
    reason: str


Notification = Assigned | Revoked | Lost
Action = Join | Sync | AwaitBackoff | Leave | Notification
