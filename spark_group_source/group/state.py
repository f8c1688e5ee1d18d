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


def step(now: Membership, event: Event, time: float, revocation_timeout: float) -> Step:
    """Returns the membership after ``event``, and the actions to perform.

    Args:
        now: the membership before the event.
        event: what happened.
        time: seconds on the caller's monotonic clock.
        revocation_timeout: how many seconds a revocation may wait for the batch that reads the partitions.
    """
    if now.phase in (Phase.LEFT, Phase.FAILED):
        return now, []
    match event:
        case HeartbeatSucceeded(generation, session_ends):
            # A heartbeat of an earlier generation does not prove this one.
            return replace(now, session_ends=session_ends) if generation == now.generation else now, []
        case BatchPlanned(partitions):
            return replace(now, in_flight=partitions), []
        case BatchCompleted(uncommitted):
            return _finish_revocation(replace(now, in_flight=uncommitted), time)
        case Tick() if now.owned and time >= now.session_ends:
            return _lose(now, SESSION_TIMED_OUT)
        case Tick():
            return _finish_revocation(now, time)
        case Joined(member_id, generation):
            joined = replace(now, phase=Phase.SYNCING, member_id=member_id, generation=generation)
            return joined, [Sync()]
        case Synced():
            return _synced(now, event, time + revocation_timeout)
        case SubscriptionChanged(reason):
            return _rejoin(now, reason, time + revocation_timeout) if now.phase is Phase.STABLE else (now, [])
        case RequestFailed():
            return _request_failed(now, event, time + revocation_timeout)
        case Close():
            # Spark may never confirm the batch in flight: waiting for it would delay the other members.
            notifications: list[Action] = [Revoked(frozenset(now.owned))] if now.owned else []
            return replace(now, phase=Phase.LEFT, owned={}, revoking=NONE), [*notifications, Leave()]
    raise AssertionError(f"unknown event: {event!r}")


def _synced(now: Membership, synced: Synced, revoke_by: float) -> Step:
    if now.phase is not Phase.SYNCING:
        return now, []  # the session timed out while the sync was pending: a join follows
    assigned = synced.assigned
    added = assigned - now.owned.keys()
    owned = {**now.owned, **dict.fromkeys(added, now.generation)}
    to_revoke = frozenset(owned) - assigned
    stable = replace(now, phase=Phase.STABLE, owned=owned, revoking=NONE, session_ends=synced.session_ends)
    notifications: list[Action] = [Assigned(added)] if added else []
    if not to_revoke:
        return stable, notifications
    after, actions = _revoke(stable, to_revoke, "partitions were revoked", revoke_by)
    return after, notifications + actions


def _rejoin(now: Membership, reason: str, revoke_by: float) -> Step:
    if now.cooperative:
        return replace(now, phase=Phase.JOINING, reason=reason), [Join()]
    # An eager assignor assigns every partition again: the member revokes all of its partitions before the join.
    return _revoke(now, frozenset(now.owned), reason, revoke_by)


def _revoke(now: Membership, partitions: Partitions, reason: str, revoke_by: float) -> Step:
    """Revokes partitions and joins again; first waits for the batch that reads them, if it is running."""
    return _finish_revocation(
        replace(now, phase=Phase.REVOKING, revoking=partitions, revoke_by=revoke_by, reason=reason), -math.inf
    )


def _finish_revocation(now: Membership, time: float) -> Step:
    """Ends a pending revocation once the batch is committed or ``revoke_by`` has passed, and joins again."""
    late = now.revoking & now.in_flight
    if now.phase is not Phase.REVOKING or (late and time < now.revoke_by):
        return now, []
    owned = {tp: since for tp, since in now.owned.items() if tp not in now.revoking}
    notifications: list[Action] = [Revoked(now.revoking, late)] if now.revoking else []
    return replace(now, phase=Phase.JOINING, owned=owned, revoking=NONE), [*notifications, Join()]


def _request_failed(now: Membership, failure: RequestFailed, revoke_by: float) -> Step:
    match failure.action:
        case ErrorAction.MEMBER_ID_REQUIRED:
            return replace(now, phase=Phase.JOINING, member_id=failure.member_id), [Join()]
        case ErrorAction.REJOIN if now.phase is Phase.STABLE:
            return _rejoin(now, failure.reason, revoke_by)
        case ErrorAction.REJOIN if now.phase is Phase.REVOKING:
            # The group waits for this revocation; the heartbeat that returned this error kept the session alive.
            return now, []
        case ErrorAction.REJOIN:
            return replace(now, phase=Phase.JOINING, reason=failure.reason), [Join()]
        case ErrorAction.RESET_GENERATION:
            return _lose(now, failure.reason)
        case ErrorAction.RESET_MEMBER_ID:
            return _lose(replace(now, member_id=""), failure.reason)
        case ErrorAction.FATAL:
            failed = replace(now, phase=Phase.FAILED, owned={}, revoking=NONE, error=failure.error)
            return failed, [Lost(frozenset(now.owned), failure.reason)] if now.owned else []
        case _:
            return _retry(now, rediscover=failure.action is not ErrorAction.RETRY)


def _lose(now: Membership, reason: str) -> Step:
    after = replace(now, phase=Phase.JOINING, generation=-1, owned={}, revoking=NONE, reason=reason)
    notifications: list[Action] = [Lost(frozenset(now.owned), reason)] if now.owned else []
    return after, [*notifications, Join()]


def _retry(now: Membership, rediscover: bool) -> Step:
    backoff: list[Action] = [AwaitBackoff(rediscover)]
    if now.phase in (Phase.JOINING, Phase.SYNCING):
        # A sync without a response is a new join: the response may have been lost with the connection.
        return replace(now, phase=Phase.JOINING), [*backoff, Join()]
    return now, backoff
