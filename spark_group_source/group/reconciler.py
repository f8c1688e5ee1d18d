"""The partitions of one member, from assignment to revocation or loss: the part that both group protocols have. Pure.

              partitions to revoke, which the running batch reads or whose commits are pending
    STABLE ─────────────────────────────────────────────────────────▶ REVOKING
      ▲                                                                  │    all is committed, or the
      └─────────────────────────── Acknowledge ◀─────────────────────────┘    revocation timeout has passed

    A revocation that need not wait is acknowledged at once.
    From every phase: LEFT when the query ends, FAILED after a fatal error, JOINING with nothing owned when the session
    times out: no heartbeat has succeeded for a session timeout, so the coordinator may have removed this member

Each function returns the new membership and the actions to perform. It uses no thread, socket or clock. A handshake
(:mod:`spark_group_source.group.classic.handshake`, :mod:`spark_group_source.group.consumer.handshake`) calls them, and
turns :class:`~spark_group_source.group.events.Acknowledge` into a request of its protocol.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from spark_group_source.errors import FENCED_INSTANCE_ID
from spark_group_source.group.events import (
    Acknowledge,
    Action,
    Assigned,
    BatchCompleted,
    BatchPlanned,
    Close,
    CommitsChanged,
    Event,
    Leave,
    Lost,
    RequestFailed,
    Revoked,
    Tick,
)
from spark_group_source.group.membership import NO_GENERATION, NONE, Membership, Phase
from spark_group_source.offsets import Partitions

SESSION_TIMED_OUT = "the session timed out without a heartbeat response"

Member = TypeVar("Member", bound=Membership)


def step(member: Member, event: Event, now: float) -> tuple[Member, list[Action]]:
    """Applies an event that no handshake needs to know. ``now`` is in seconds on the caller's monotonic clock."""
    match event:
        case BatchPlanned(partitions):
            return replace(member, in_flight=partitions), []
        case BatchCompleted(uncommitted):
            return _finish_revocation(replace(member, in_flight=NONE, uncommitted=uncommitted), now)
        case CommitsChanged(uncommitted) if uncommitted != member.uncommitted:
            return _finish_revocation(replace(member, uncommitted=uncommitted), now)
        case CommitsChanged():
            return member, []
        case Tick() if member.owned and now >= member.session_ends:
            return lose(member, SESSION_TIMED_OUT)
        case Tick():
            return _finish_revocation(member, now)
        case Close():
            # Spark may never confirm the batch in flight: waiting for it would delay the other members.
            return replace(member, phase=Phase.LEFT, owned={}, revoking=NONE), [Leave()]
    raise AssertionError(f"unknown event: {event!r}")


def assign(member: Member, assigned: Partitions, revoke_by: float) -> tuple[Member, list[Action]]:
    """Makes ``assigned`` the assignment: adds what is new, and revokes what is no longer in it.

    A revocation that is pending already keeps its own deadline.
    """
    added = assigned - member.owned.keys()
    owned = {**member.owned, **dict.fromkeys(added, member.generation)}
    to_revoke = frozenset(owned) - assigned
    notifications: list[Action] = [Assigned(added)] if added else []
    if not to_revoke:
        return replace(member, phase=Phase.STABLE, owned=owned, revoking=NONE), notifications
    if member.phase is Phase.REVOKING:
        revoke_by = min(revoke_by, member.revoke_by)
    after, actions = revoke(replace(member, owned=owned), to_revoke, "partitions were revoked", revoke_by)
    return after, notifications + actions


def revoke(member: Member, partitions: Partitions, reason: str, revoke_by: float) -> tuple[Member, list[Action]]:
    """Revokes partitions and acknowledges that; first waits for the batch that reads them, and for pending commits."""
    return _finish_revocation(
        replace(member, phase=Phase.REVOKING, revoking=partitions, revoke_by=revoke_by, reason=reason), -math.inf
    )


def _finish_revocation(member: Member, now: float) -> tuple[Member, list[Action]]:
    """Ends a pending revocation once the batch and everything else is committed, or ``revoke_by`` has passed."""
    in_flight, uncommitted = member.revoking & member.in_flight, member.revoking & member.uncommitted
    if member.phase is not Phase.REVOKING or ((in_flight or uncommitted) and now < member.revoke_by):
        return member, []
    owned = {tp: since for tp, since in member.owned.items() if tp not in member.revoking}
    notifications: list[Action] = [Revoked(member.revoking, in_flight, uncommitted)] if member.revoking else []
    return replace(member, phase=Phase.STABLE, owned=owned, revoking=NONE), [*notifications, Acknowledge()]


def lose(member: Member, reason: str) -> tuple[Member, list[Action]]:
    """The coordinator may have removed the member: all partitions are lost, and the member joins again."""
    after = replace(member, phase=Phase.JOINING, generation=NO_GENERATION, owned={}, revoking=NONE, reason=reason)
    return after, [*_lost(member, reason), Acknowledge()]


def fail(member: Member, failure: RequestFailed) -> tuple[Member, list[Action]]:
    """A request failed with a fatal error, which ends the membership.

    The coordinator may still have the member: it leaves, so that its partitions need not wait for the session timeout.
    A fenced static member cannot leave: another one has its place.
    """
    after = replace(member, phase=Phase.FAILED, owned={}, revoking=NONE, error=failure.error)
    fenced = getattr(failure.error, "errno", None) == FENCED_INSTANCE_ID
    return after, [*_lost(member, failure.reason), *([] if fenced else [Leave()])]


def _lost(member: Membership, reason: str) -> list[Action]:
    return [Lost(frozenset(member.owned), reason)] if member.owned else []
