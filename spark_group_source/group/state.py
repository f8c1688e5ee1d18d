"""The membership of one query in its group, as a pure state machine.

      ┌───────── lost, join or sync failed ◀──────┐
      ▼                                           │
    JOINING ──Joined──▶ SYNCING ──Synced──▶ STABLE ──▶ REVOKING
      ▲                    │                  │           │     a running batch reads partitions to revoke:
      ├──── sync failed ───┘                  │           │     heartbeats continue until it is committed
      └──── rebalance, no batch to wait for ◀─┴───────────┘

    From every phase: LEFT when the query ends, FAILED after a fatal error, JOINING with nothing owned when the session
    times out: no heartbeat has succeeded for a session timeout, so the coordinator may have removed this member

:func:`step` takes an event and returns the new state and the actions to perform. It uses no thread, socket or clock;
:mod:`spark_group_source.group.member` performs the actions and reports their results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import (
    Action,
    Assigned,
    AwaitBackoff,
    BatchCompleted,
    BatchPlanned,
    Close,
    Event,
    HeartbeatSucceeded,
    Join,
    Joined,
    Leave,
    Lost,
    RequestFailed,
    Revoked,
    SubscriptionChanged,
    Sync,
    Synced,
    Tick,
)
from spark_group_source.offsets import Partitions, TopicPartition

NONE: Partitions = frozenset()

SESSION_TIMED_OUT = "the session timed out without a heartbeat response"


class Phase(Enum):
    """Where a member is in the life of a generation."""

    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()
    REVOKING = auto()
    LEFT = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Membership:
    """One query's membership. ``owned`` maps each partition to the generation that assigned it, if owned ever since.

    ``revoking`` are owned partitions with a pending revocation: no new batch may read them. ``in_flight`` are
    partitions with uncommitted work, of Spark's running batch or of one whose commit failed. ``revoke_by`` is when a
    pending revocation stops waiting for the batch, in seconds of the clock. ``session_ends`` is when the coordinator
    may have assigned the partitions to other members, because no heartbeat succeeded; unused while nothing is owned.
    """

    cooperative: bool = True
    phase: Phase = Phase.JOINING
    member_id: str = ""
    generation: int = -1
    owned: Mapping[TopicPartition, int] = field(default_factory=dict)
    revoking: Partitions = NONE
    in_flight: Partitions = NONE
    revoke_by: float = 0.0
    session_ends: float = math.inf
    reason: str = "the query starts"
    error: GroupSourceError | None = None

    @property
    def readable(self) -> Mapping[TopicPartition, int]:
        """Partitions that the next batch may read, with the generation that assigned them."""
        return {tp: since for tp, since in self.owned.items() if tp not in self.revoking}


Step = tuple[Membership, list[Action]]


def step(membership: Membership, event: Event, now: float, revocation_timeout: float) -> Step:
    """Returns the membership after ``event``, and the actions to perform.

    Args:
        membership: the membership before the event.
        event: what happened.
        now: seconds on the caller's monotonic clock.
        revocation_timeout: how many seconds a revocation may wait for the batch that reads the partitions.
    """
    if membership.phase in (Phase.LEFT, Phase.FAILED):
        return membership, []
    match event:
        case HeartbeatSucceeded(generation, session_ends):
            # A heartbeat of an earlier generation does not prove this one.
            return replace(
                membership, session_ends=session_ends
            ) if generation == membership.generation else membership, []
        case BatchPlanned(partitions):
            return replace(membership, in_flight=partitions), []
        case BatchCompleted(uncommitted):
            return _finish_revocation(replace(membership, in_flight=uncommitted), now)
        case Tick() if membership.owned and now >= membership.session_ends:
            return _lose(membership, SESSION_TIMED_OUT)
        case Tick():
            return _finish_revocation(membership, now)
        case Joined(member_id, generation):
            joined = replace(membership, phase=Phase.SYNCING, member_id=member_id, generation=generation)
            return joined, [Sync()]
        case Synced():
            return _synced(membership, event, now + revocation_timeout)
        case SubscriptionChanged(reason):
            return (
                _rejoin(membership, reason, now + revocation_timeout)
                if membership.phase is Phase.STABLE
                else (membership, [])
            )
        case RequestFailed():
            return _request_failed(membership, event, now + revocation_timeout)
        case Close():
            # Spark may never confirm the batch in flight: waiting for it would delay the other members.
            notifications: list[Action] = [Revoked(frozenset(membership.owned))] if membership.owned else []
            return replace(membership, phase=Phase.LEFT, owned={}, revoking=NONE), [*notifications, Leave()]
    raise AssertionError(f"unknown event: {event!r}")


def _synced(membership: Membership, synced: Synced, revoke_by: float) -> Step:
    if membership.phase is not Phase.SYNCING:
        return membership, []  # the session timed out while the sync was pending: a join follows
    assigned = synced.assigned
    added = assigned - membership.owned.keys()
    owned = {**membership.owned, **dict.fromkeys(added, membership.generation)}
    to_revoke = frozenset(owned) - assigned
    stable = replace(membership, phase=Phase.STABLE, owned=owned, revoking=NONE, session_ends=synced.session_ends)
    notifications: list[Action] = [Assigned(added)] if added else []
    if not to_revoke:
        return stable, notifications
    after, actions = _revoke(stable, to_revoke, "partitions were revoked", revoke_by)
    return after, notifications + actions


def _rejoin(membership: Membership, reason: str, revoke_by: float) -> Step:
    if membership.cooperative:
        return replace(membership, phase=Phase.JOINING, reason=reason), [Join()]
    # An eager assignor assigns every partition again: the member revokes all of its partitions before the join.
    return _revoke(membership, frozenset(membership.owned), reason, revoke_by)


def _revoke(membership: Membership, partitions: Partitions, reason: str, revoke_by: float) -> Step:
    """Revokes partitions and joins again; first waits for the batch that reads them, if it is running."""
    return _finish_revocation(
        replace(membership, phase=Phase.REVOKING, revoking=partitions, revoke_by=revoke_by, reason=reason), -math.inf
    )


def _finish_revocation(membership: Membership, now: float) -> Step:
    """Ends a pending revocation once the batch is committed or ``revoke_by`` has passed, and joins again."""
    late = membership.revoking & membership.in_flight
    if membership.phase is not Phase.REVOKING or (late and now < membership.revoke_by):
        return membership, []
    owned = {tp: since for tp, since in membership.owned.items() if tp not in membership.revoking}
    notifications: list[Action] = [Revoked(membership.revoking, late)] if membership.revoking else []
    return replace(membership, phase=Phase.JOINING, owned=owned, revoking=NONE), [*notifications, Join()]


def _request_failed(membership: Membership, failure: RequestFailed, revoke_by: float) -> Step:
    match failure.action:
        case ErrorAction.MEMBER_ID_REQUIRED:
            return replace(membership, phase=Phase.JOINING, member_id=failure.member_id), [Join()]
        case ErrorAction.REJOIN if membership.phase is Phase.STABLE:
            return _rejoin(membership, failure.reason, revoke_by)
        case ErrorAction.REJOIN if membership.phase is Phase.REVOKING:
            # The group waits for this revocation; the heartbeat that returned this error kept the session alive.
            return membership, []
        case ErrorAction.REJOIN:
            return replace(membership, phase=Phase.JOINING, reason=failure.reason), [Join()]
        case ErrorAction.RESET_GENERATION:
            return _lose(membership, failure.reason)
        case ErrorAction.RESET_MEMBER_ID:
            return _lose(replace(membership, member_id=""), failure.reason)
        case ErrorAction.FATAL:
            failed = replace(membership, phase=Phase.FAILED, owned={}, revoking=NONE, error=failure.error)
            return failed, [Lost(frozenset(membership.owned), failure.reason)] if membership.owned else []
        case _:
            return _retry(membership, rediscover=failure.action is not ErrorAction.RETRY)


def _lose(membership: Membership, reason: str) -> Step:
    after = replace(membership, phase=Phase.JOINING, generation=-1, owned={}, revoking=NONE, reason=reason)
    notifications: list[Action] = [Lost(frozenset(membership.owned), reason)] if membership.owned else []
    return after, [*notifications, Join()]


def _retry(membership: Membership, rediscover: bool) -> Step:
    backoff: list[Action] = [AwaitBackoff(rediscover)]
    if membership.phase in (Phase.JOINING, Phase.SYNCING):
        # A sync without a response is a new join: the response may have been lost with the connection.
        return replace(membership, phase=Phase.JOINING), [*backoff, Join()]
    return membership, backoff
