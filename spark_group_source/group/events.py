"""What happens to a membership: the events that :func:`spark_group_source.group.state.step` takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.offsets import Partitions


@dataclass(frozen=True, slots=True)
class Joined:
    """JoinGroup was answered: this member is in a new generation, and has yet to learn its share."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Synced:
    """SyncGroup was answered with this member's share. ``session_ends`` as in :class:`SessionExtended`."""

    assigned: Partitions
    session_ends: float = math.inf


@dataclass(frozen=True, slots=True)
class SessionExtended:
    """The coordinator knows this member in ``generation``.

    ``session_ends`` is when the coordinator may remove the member unless it hears from it again: one session after
    the request was *sent* that the coordinator answered, in seconds of the clock.
    """

    generation: int
    session_ends: float


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request of the membership failed. ``error`` is set if the action is FATAL."""

    action: ErrorAction
    why: str
    member_id: str = ""
    error: GroupSourceError | None = None


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """Spark was given a batch; these partitions have work that is not committed, what it reads among them."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class BatchCompleted:
    """The batch is completed. What could be committed of it is; of these partitions it could not yet."""

    uncommitted: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    """Topics or partition counts are no longer those that were assigned, or not all were assigned."""

    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: a drain or the session may be over."""


@dataclass(frozen=True, slots=True)
class Close:
    """The query ends."""


Event = (
    Joined
    | Synced
    | SessionExtended
    | RequestFailed
    | BatchPlanned
    | BatchCompleted
    | SubscriptionChanged
    | Tick
    | Close
)
