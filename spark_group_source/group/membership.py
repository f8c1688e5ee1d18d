"""The partitions of one member, from assignment to revocation or loss: the part that both group protocols share. Pure.

              partitions to revoke, which the running batch reads or whose commits are pending
    STABLE ─────────────────────────────────────────────────────────▶ REVOKING
      ▲                                                                  │    all is committed, or the
      └─────────────────────────── Acknowledge ◀─────────────────────────┘    revocation timeout has passed

    A revocation that need not wait is acknowledged at once.
    From every phase: LEFT when the query ends, FAILED after a fatal error, JOINING with nothing owned when the session
    times out: no heartbeat has succeeded for a session timeout, so the coordinator may have removed this member

Each function returns the new membership and the actions to perform. It uses no thread, socket or clock. The state
machine of a group protocol (:mod:`.classic.states`, :mod:`.consumer.states`) calls them, and turns :class:`Acknowledge`
into a request of its protocol. :mod:`.error_actions` says which errors end the membership.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeVar
from uuid import UUID

from spark_group_source.errors import FENCED_INSTANCE_ID, GroupSourceError
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.offsets import Partitions, TopicPartition

NONE: Partitions = frozenset()

NO_GENERATION = -1
"""The generation of a query that is not in the group: a new one, and one that has lost its partitions."""


class Phase(Enum):
    """Where a member is in the life of its membership."""

    JOINING = auto()
    """The coordinator has yet to give this member an assignment, the first one or the next one."""
    STABLE = auto()
    REVOKING = auto()
    """A revocation is pending."""
    LEFT = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Membership:
    """One query's membership.

    Attributes:
        owned: the owned partitions, each with the generation that assigned it. A later generation that keeps the
            partition does not change the entry.
        topic_ids: the ids of the topics of owned partitions, if the group assigns by id.
        revoking: the owned partitions with a pending revocation. No new batch may read them.
        awaited: the partitions for which a revocation has to wait: the batch in flight reads them, or their commit or
            start is pending. The pending revocation ends once none of ``revoking`` is awaited.
        revoke_by: when the pending revocation ends in any case, in seconds of the clock.
        session_ends: when the session ends unless a heartbeat succeeds before, in seconds of the clock. From then on,
            the coordinator may assign the partitions to other members. Unused while the member owns nothing.
        reason: why the member joins, for the log.
        error: the error with which the membership failed, if any.
    """

    phase: Phase = Phase.JOINING
    member_id: str = ""
    generation: int = NO_GENERATION
    owned: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    revoking: Partitions = NONE
    awaited: Partitions = NONE
    revoke_by: float = 0.0
    session_ends: float = math.inf
    reason: str = "the query starts"
    error: GroupSourceError | None = None

    @property
    def ended(self) -> bool:
        """Whether the member has left or failed: nothing changes any more."""
        return self.phase in (Phase.LEFT, Phase.FAILED)

    @property
    def readable(self) -> Mapping[TopicPartition, int]:
        """Partitions that the next batch may read, with the generation that assigned them."""
        return _without(self.owned, self.revoking)


class Event:
    """Something that happened to the membership."""

    __slots__ = ()


class SessionExtended(Event):
    """The coordinator knows this member: the session ends later than was known before."""

    __slots__ = ()


class AssignmentAnswered(SessionExtended):
    """The answer also confirms or changes the member's assignment."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RequestFailed(Event):
    """The coordinator returned an error, or no response arrived. ``error`` is set if the action is FATAL.

    ``unanswered``: the request was sent, so the coordinator may still perform it.
    """

    action: ErrorAction
    reason: str
    member_id: str = ""
    error: GroupSourceError | None = None
    unanswered: bool = False

    @classmethod
    def final(cls, error: GroupSourceError) -> RequestFailed:
        """A failure with which the query ends."""
        return cls(ErrorAction.FATAL, str(error), error=error)


@dataclass(frozen=True, slots=True)
class AwaitedChanged(Event):
    """Spark got a batch, or commits succeeded or became pending: a revocation of these partitions has to wait now."""

    awaited: Partitions


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed: a revocation or the session may have timed out."""


@dataclass(frozen=True, slots=True)
class Close(Event):
    """The query ends."""


class Action:
    """Something that the member's thread has to do."""

    __slots__ = ()


class Request(Action):
    """Send a request that replaces all requests not sent yet."""

    __slots__ = ()


class Notification(Action):
    """Notify the listener."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Acknowledge(Action):
    """Report the owned partitions to the coordinator, because some were revoked or lost. Each protocol sends its own
    request."""


@dataclass(frozen=True, slots=True)
class AwaitBackoff(Action):
    """Wait for the retry backoff before the next request. ``rediscover``: find the coordinator again before that
    request."""

    rediscover: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat(Request):
    """Send a heartbeat at once. With KIP-848 it also joins, or reports what has changed."""


@dataclass(frozen=True, slots=True)
class Leave(Request):
    """Leave the group."""


@dataclass(frozen=True, slots=True)
class Assigned(Notification):
    """These partitions are owned from now on."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Revoked(Notification):
    """These partitions are revoked, even those that are still awaited when the revocation times out."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lost(Notification):
    """These partitions are lost, and none of their offsets may be committed."""

    partitions: Partitions
    reason: str


SESSION_TIMED_OUT = "the session timed out without a heartbeat response"

AnyMember = TypeVar("AnyMember", bound=Membership)


def step(member: AnyMember, event: Event, now: float) -> tuple[AnyMember, list[Action]]:
    """Applies an event that is the same for both group protocols. ``now`` is in seconds on the caller's monotonic
    clock."""
    match event:
        case AwaitedChanged(awaited) if awaited != member.awaited:
            return _finish_revocation(replace(member, awaited=awaited), now)
        case AwaitedChanged():
            return member, []
        case Tick() if member.owned and now >= member.session_ends:
            return lose(member, SESSION_TIMED_OUT)
        case Tick():
            return _finish_revocation(member, now)
        case Close():
            # Spark may never confirm the batch in flight: waiting for it would delay the other members.
            return replace(member, phase=Phase.LEFT, owned={}, revoking=NONE), [Leave()]
    raise AssertionError(f"unknown event: {event!r}")


def assign(member: AnyMember, assigned: Partitions, revoke_by: float) -> tuple[AnyMember, list[Action]]:
    """Makes ``assigned`` the assignment: adds what is new, and revokes what is no longer in it.

    A revocation that is pending already keeps its own deadline.
    """
    added = assigned - member.owned.keys()
    owned = {**member.owned, **dict.fromkeys(added, member.generation)}
    to_revoke = frozenset(owned) - assigned
    notifications: list[Action] = []
    if added:
        notifications.append(Assigned(added))
    if not to_revoke:
        return replace(member, phase=Phase.STABLE, owned=owned, revoking=NONE), notifications
    if member.phase is Phase.REVOKING:
        revoke_by = min(revoke_by, member.revoke_by)
    after, actions = revoke(replace(member, owned=owned), to_revoke, "partitions were revoked", revoke_by)
    return after, notifications + actions


def revoke(member: AnyMember, partitions: Partitions, reason: str, revoke_by: float) -> tuple[AnyMember, list[Action]]:
    """Revokes partitions and acknowledges that; first waits for the batch that reads them, and for pending commits."""
    return _finish_revocation(
        replace(member, phase=Phase.REVOKING, revoking=partitions, revoke_by=revoke_by, reason=reason), -math.inf
    )


def _finish_revocation(member: AnyMember, now: float) -> tuple[AnyMember, list[Action]]:
    """Ends a pending revocation once the batch and everything else is committed, or ``revoke_by`` has passed."""
    if member.phase is not Phase.REVOKING:
        return member, []
    waits = bool(member.revoking & member.awaited)
    if waits and now < member.revoke_by:
        return member, []
    actions: list[Action] = [Acknowledge()]
    if member.revoking:
        actions.insert(0, Revoked(member.revoking))
    return replace(member, phase=Phase.STABLE, owned=_without(member.owned, member.revoking), revoking=NONE), actions


def _without(owned: Mapping[TopicPartition, int], partitions: Partitions) -> dict[TopicPartition, int]:
    rest = dict(owned)
    for tp in partitions:
        rest.pop(tp, None)
    return rest


def without_acknowledgements(actions: Iterable[Action]) -> list[Action]:
    """The actions without :class:`Acknowledge`. Each protocol's state machine adds its own request instead."""
    return [action for action in actions if not isinstance(action, Acknowledge)]


def lose(member: AnyMember, reason: str) -> tuple[AnyMember, list[Action]]:
    """Loses all partitions and joins again, because the coordinator may have removed the member."""
    after = replace(member, phase=Phase.JOINING, generation=NO_GENERATION, owned={}, revoking=NONE, reason=reason)
    return after, [*_lost(member, reason), Acknowledge()]


def fail(member: AnyMember, failure: RequestFailed) -> tuple[AnyMember, list[Action]]:
    """A request failed with a fatal error, which ends the membership.

    The coordinator may still have the member in the group. The member therefore leaves, so that its partitions need not
    wait for the session timeout. A fenced static member cannot leave, because another member has its instance id.
    """
    after = replace(member, phase=Phase.FAILED, owned={}, revoking=NONE, error=failure.error)
    actions = _lost(member, failure.reason)
    if getattr(failure.error, "error_code", None) != FENCED_INSTANCE_ID:
        actions.append(Leave())
    return after, actions


def _lost(member: Membership, reason: str) -> list[Action]:
    if not member.owned:
        return []
    return [Lost(frozenset(member.owned), reason)]
