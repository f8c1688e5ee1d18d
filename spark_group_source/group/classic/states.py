"""The state machine of a classic membership: join, sync for the assignment, and join again after a revocation. Pure.

      ┌───────── lost, join or sync failed ◀──────┐
      ▼                                           │
    JOINING ──Joined──▶ syncing ──Synced──▶ STABLE ──▶ REVOKING
      ▲                    │                  │           │     a running batch reads partitions to revoke:
      ├──── sync failed ───┘                  │           │     heartbeats continue until it is committed
      └──── rebalance, no batch to wait for ◀─┴───────────┘

:func:`step` takes an event and returns the new state and the actions to perform. The functions that both protocols
share (:mod:`.membership`) decide about the partitions. This protocol acknowledges a revocation with a JoinGroup. The
member performs the actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from spark_group_source.group import membership as common
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import (
    NO_GENERATION,
    Acknowledge,
    Action,
    AssignmentAnswered,
    AwaitBackoff,
    Event,
    Membership,
    Phase,
    Request,
    RequestFailed,
    SessionExtended,
    without_acknowledgements,
)
from spark_group_source.offsets import Partitions

REBALANCE = "the group rebalances"
"""Why a member joins again after REBALANCE_IN_PROGRESS, which is no failure, so the log does not call it one."""

MISSED_GENERATION = "the group has assigned partitions without this static member, which did not join in time"


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """JoinGroup succeeded: this member is in a new generation and does not know its assignment yet.

    ``sent_in`` is the generation in which the JoinGroup was sent, and in which the member owned the partitions that it
    names.
    """

    member_id: str
    generation: int
    sent_in: int


@dataclass(frozen=True, slots=True)
class Synced(AssignmentAnswered):
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


@dataclass(frozen=True, slots=True)
class ClassicMembership(Membership):
    """``cooperative``: the member keeps its partitions during a rebalance. ``static``: it has an instance id.
    ``syncing``: the member is in a new generation, and waits for its assignment."""

    cooperative: bool = True
    static: bool = False
    syncing: bool = False


Step = tuple[ClassicMembership, list[Action]]


def step(membership: ClassicMembership, event: Event, now: float, revocation_timeout: float) -> Step:
    """Returns the membership after ``event``, and the actions to perform.

    ``now`` is in seconds on the caller's monotonic clock. A revocation waits for ``revocation_timeout`` seconds for the
    batch that reads the partitions.
    """
    if membership.ended:
        return membership, []
    match event:
        case HeartbeatSucceeded(generation, session_ends):
            # A heartbeat of an earlier generation does not prove this one.
            if generation != membership.generation:
                return membership, []
            return replace(membership, session_ends=session_ends), []
        case Joined(sent_in=sent_in) if sent_in != membership.generation:
            return membership, []  # the partitions were lost meanwhile: a join follows, which does not claim them
        case Joined(generation=generation) if _has_missed_generation(membership, generation):
            return _acknowledge(common.lose(membership, MISSED_GENERATION))
        case Joined(member_id, generation):
            joined = replace(membership, phase=Phase.JOINING, syncing=True, member_id=member_id, generation=generation)
            return joined, [Sync()]
        case Synced(assigned, session_ends) if membership.syncing:
            synced = replace(membership, syncing=False, session_ends=session_ends)
            return _acknowledge(common.assign(synced, assigned, now + revocation_timeout))
        case Synced():
            return membership, []  # the session timed out while the sync was pending: a join follows
        case SubscriptionChanged(reason) if membership.phase is Phase.STABLE:
            return _rejoin(membership, reason, now + revocation_timeout)
        case SubscriptionChanged():
            return membership, []
        case RequestFailed():
            return _request_failed(membership, event, now + revocation_timeout)
        case _:
            return _acknowledge(common.step(membership, event, now))


def _has_missed_generation(membership: ClassicMembership, joined: int) -> bool:
    """Whether the group had a generation between that of this member and the one that it has ``joined``.

    Unlike other members, a static member stays in the group if it does not join in time, and the leader goes by what it
    owned at its last join. So other members may own its partitions, and the next generation does not revoke them.
    """
    if not membership.static or membership.generation == NO_GENERATION:
        return False
    return joined > membership.generation + 1


def _acknowledge(decided: Step) -> Step:
    """Replaces an acknowledgement by a JoinGroup, which reports the owned partitions after a revocation or a loss."""
    membership, actions = decided
    if Acknowledge() not in actions:
        return decided
    joining, join = _join(membership)
    return joining, without_acknowledgements(actions) + join


def _join(membership: ClassicMembership) -> Step:
    return replace(membership, phase=Phase.JOINING, syncing=False), [Join()]


def _rejoin(membership: ClassicMembership, reason: str, revoke_by: float) -> Step:
    if membership.cooperative:
        return _join(replace(membership, reason=reason))
    # An eager assignor assigns every partition again: the member revokes all of its partitions before the join.
    return _acknowledge(common.revoke(membership, frozenset(membership.owned), reason, revoke_by))


def _request_failed(membership: ClassicMembership, failure: RequestFailed, revoke_by: float) -> Step:
    match failure.action:
        case ErrorAction.MEMBER_ID_REQUIRED:
            return _join(replace(membership, member_id=failure.member_id))
        case ErrorAction.REJOIN if membership.phase is Phase.STABLE:
            return _rejoin(membership, REBALANCE, revoke_by)
        case ErrorAction.REJOIN if membership.phase is Phase.REVOKING:
            # The group waits for this revocation; the heartbeat or commit with this error kept the session alive.
            return membership, []
        case ErrorAction.REJOIN:
            return _join(replace(membership, reason=REBALANCE))
        case ErrorAction.RESET_GENERATION:
            return _acknowledge(common.lose(membership, failure.reason))
        case ErrorAction.RESET_MEMBER_ID:
            return _acknowledge(common.lose(replace(membership, member_id=""), failure.reason))
        case ErrorAction.FATAL:
            return common.fail(membership, failure)
        case _:
            return _retry(membership, rediscover=failure.action is not ErrorAction.RETRY)


def _retry(membership: ClassicMembership, rediscover: bool) -> Step:
    backoff: list[Action] = [AwaitBackoff(rediscover)]
    if membership.phase is not Phase.JOINING:
        return membership, backoff
    # A sync without a response leads to a new join, because the response may have been lost with the connection.
    joining, join = _join(membership)
    return joining, backoff + join
