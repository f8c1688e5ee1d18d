"""The partitions of one member, from assignment to revocation or loss: the part that both group protocols have. Pure.

              partitions to revoke, which the running batch reads or whose commits are pending
    STABLE ─────────────────────────────────────────────────────────▶ REVOKING
      ▲                                                                  │    all is committed, or the
      └─────────────────────────── Acknowledge ◀─────────────────────────┘    revocation timeout has passed

    A revocation that need not wait is acknowledged at once.
    From every phase: LEFT when the query ends, FAILED after a fatal error, JOINING with nothing owned when the session
    times out: no heartbeat has succeeded for a session timeout, so the coordinator may have removed this member

Each function returns the new membership and the actions to perform. It uses no thread, socket or clock. The state
machine of a group protocol (:mod:`.classic_state`, :mod:`.consumer_state`) calls them, and turns :class:`Acknowledge`
into a request of its protocol.

:data:`ERROR_ACTIONS` says what a member does about each error code of a heartbeat, join, sync or commit. Exceptions:
:data:`MAY_HEAL`, a join with KIP-848 (``ConsumerProtocol``), and a permission that this query had before: it is retried
by the rule of :mod:`spark_group_source.grace`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeVar
from uuid import UUID

from spark_group_source.errors import (
    CLUSTER_AUTHORIZATION_FAILED,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    AuthenticationFailed,
    GroupError,
    GroupSourceError,
    describe_error_code,
)
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.text import names, printable


class ErrorAction(Enum):
    """What a member does about an error."""

    RETRY = auto()
    """Retry at the same coordinator after a backoff."""
    REDISCOVER = auto()
    """Find the coordinator and retry there; membership is kept."""
    REJOIN = auto()
    """The group is rebalancing: a classic member joins again with the owned partitions, another only backs off."""
    MEMBER_ID_REQUIRED = auto()
    """The coordinator returned this member's id: join again with it."""
    RESET_GENERATION = auto()
    """The generation is over: everything owned is lost and may not be committed; join with the same member id."""
    RESET_MEMBER_ID = auto()
    """As RESET_GENERATION, but the coordinator does not know the member id: a classic member joins as a new one."""
    STALE_EPOCH = auto()
    """The member has a newer epoch than the commit (KIP-848): commit again at once with the epoch of now."""
    TRIM_METADATA = auto()
    """The commit's metadata is too long: commit again with short metadata."""
    SKIP = auto()
    """The coordinator does not know this partition yet, or any more: the others succeed, and it is retried."""
    FATAL = auto()
    """A retry cannot help: the query fails with an error that says what to change."""


ERROR_ACTIONS: dict[int, ErrorAction] = {
    -1: ErrorAction.REDISCOVER,  # UNKNOWN_SERVER_ERROR: a failure within the broker. Kafka's client fails
    3: ErrorAction.SKIP,  # UNKNOWN_TOPIC_OR_PARTITION
    7: ErrorAction.REDISCOVER,  # REQUEST_TIMED_OUT
    12: ErrorAction.TRIM_METADATA,  # OFFSET_METADATA_TOO_LARGE
    14: ErrorAction.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    15: ErrorAction.REDISCOVER,  # COORDINATOR_NOT_AVAILABLE
    16: ErrorAction.REDISCOVER,  # NOT_COORDINATOR
    22: ErrorAction.RESET_GENERATION,  # ILLEGAL_GENERATION
    23: ErrorAction.FATAL,  # INCONSISTENT_GROUP_PROTOCOL
    24: ErrorAction.FATAL,  # INVALID_GROUP_ID
    25: ErrorAction.RESET_MEMBER_ID,  # UNKNOWN_MEMBER_ID
    26: ErrorAction.FATAL,  # INVALID_SESSION_TIMEOUT
    27: ErrorAction.REJOIN,  # REBALANCE_IN_PROGRESS
    28: ErrorAction.RETRY,  # INVALID_COMMIT_OFFSET_SIZE: of the request; a commit without our tag would be a rewind
    29: ErrorAction.FATAL,  # TOPIC_AUTHORIZATION_FAILED
    30: ErrorAction.FATAL,  # GROUP_AUTHORIZATION_FAILED
    31: ErrorAction.FATAL,  # CLUSTER_AUTHORIZATION_FAILED
    35: ErrorAction.FATAL,  # UNSUPPORTED_VERSION
    69: ErrorAction.RESET_GENERATION,  # GROUP_ID_NOT_FOUND: the group was deleted
    79: ErrorAction.MEMBER_ID_REQUIRED,  # MEMBER_ID_REQUIRED
    81: ErrorAction.FATAL,  # GROUP_MAX_SIZE_REACHED
    82: ErrorAction.FATAL,  # FENCED_INSTANCE_ID
    88: ErrorAction.RETRY,  # UNSTABLE_OFFSET_COMMIT
    100: ErrorAction.SKIP,  # UNKNOWN_TOPIC_ID
    110: ErrorAction.RESET_GENERATION,  # FENCED_MEMBER_EPOCH
    111: ErrorAction.RETRY,  # UNRELEASED_INSTANCE_ID: the former process was killed; its session ends by itself
    112: ErrorAction.FATAL,  # UNSUPPORTED_ASSIGNOR
    113: ErrorAction.STALE_EPOCH,  # STALE_MEMBER_EPOCH
    128: ErrorAction.FATAL,  # INVALID_REGULAR_EXPRESSION: this source evaluates its patterns itself, and sends none
}
"""Error code to action; any other code is :attr:`ErrorAction.FATAL`, so that no error is ignored."""

MAY_HEAL = {23, 26, 35, 81, 112}
"""Fatal for a query that has just started, because a setting is wrong. If it was in the group before, the setting of a
broker or another member has changed, and may change back: during an upgrade the brokers differ."""

_DENIED = {TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED}

_ADVICE = {
    23: "Set 'kafka.partition.assignment.strategy' to an assignor that all members have (range for librdkafka, sarama,"
    " kafka-go and kafka-python, roundrobin for aiokafka) or, on Kafka 4.0 or later, 'kafka.group.protocol' to"
    " consumer, which shares with any assignor. If the members are no consumers, use another 'kafka.group.id'.",
    24: "Set 'kafka.group.id' to a group id that the brokers accept.",
    26: "Set 'kafka.session.timeout.ms' between the brokers' group.min.session.timeout.ms and"
    " group.max.session.timeout.ms.",
    29: "Grant the principal READ and DESCRIBE on the topic.",
    30: "Grant the principal READ on the group.",
    31: "Grant the principal the permission on the cluster that the brokers' authorizer log names.",
    35: "The brokers have this group protocol switched off (the feature group.version, or their setting"
    " group.coordinator.rebalance.protocols): switch it on, or set 'kafka.group.protocol' to classic.",
    69: "The group has members that are no consumers, or librdkafka leads it with cooperative-sticky, or the brokers"
    " do not convert its protocol (group.consumer.migration.policy): use another 'kafka.group.id', or set"
    " 'kafka.group.protocol' to classic.",
    81: "Raise the brokers' group.max.size, or stop a member of the group.",
    82: "Another member uses the same 'kafka.group.instance.id': give each query its own.",
    112: "Set 'kafka.group.remote.assignor' to an assignor of the brokers (group.consumer.assignors).",
}


def error_action(error_code: int) -> ErrorAction:
    """What to do about an error code other than 0."""
    return ERROR_ACTIONS.get(error_code, ErrorAction.FATAL)


def denied(error: GroupSourceError) -> bool:
    """Whether a permission is missing or the credentials are wrong, and that is final: a retry cannot help."""
    return isinstance(error, AuthenticationFailed) or getattr(error, "error_code", None) in _DENIED


def fatal(
    request: str, group: str, error_code: int, topics: Collection[str] = (), broker_message: str | None = None
) -> GroupError:
    """The error with which the query fails; it names the topics, if the error code is about topics.

    ``broker_message`` is the broker's explanation, if its response has one.
    """
    suffix = f" for {names(set(topics))}" if topics else ""
    explanation = f" The broker says: {printable(broker_message)}" if broker_message else ""
    return GroupError(
        f"{request} of group '{group}' failed with {describe_error_code(error_code)}{suffix}.{explanation}",
        _ADVICE.get(error_code, ""),
        error_code=error_code,
        topics=topics,
    )


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
    """One query's membership. ``owned`` maps each partition to the generation that assigned it, if owned ever since.

    ``revoking`` are owned partitions with a pending revocation: no new batch may read them. It waits for those of them
    that are ``awaited``: Spark's batch in flight reads them, or their commits are pending. ``revoke_by`` is when it
    stops waiting, in seconds of the clock. ``session_ends`` is when the coordinator may have assigned the
    partitions to other members, because no heartbeat succeeded; unused while nothing is owned. ``reason`` is why the
    member joins, for the log. ``topic_ids`` has the ids of the topics of owned partitions, if the group assigns by id.
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
        return {tp: since for tp, since in self.owned.items() if tp not in self.revoking}


class Event:
    """What happened."""

    __slots__ = ()


class SessionExtended(Event):
    """The coordinator knows this member: the session ends later than was known before."""

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


@dataclass(frozen=True, slots=True)
class AwaitedChanged(Event):
    """Spark got a batch, or commits succeeded or became due: a revocation of these partitions waits now."""

    awaited: Partitions


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed: a revocation or the session may have timed out."""


@dataclass(frozen=True, slots=True)
class Close(Event):
    """The query ends."""


class Action:
    """What the member's thread has to do."""

    __slots__ = ()


class Request(Action):
    """Send a request that replaces all requests not sent yet."""

    __slots__ = ()


class Notification(Action):
    """Notify the listener."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Acknowledge(Action):
    """Report the owned partitions to the coordinator: some were revoked or lost. The protocol sends a request then."""


@dataclass(frozen=True, slots=True)
class AwaitBackoff(Action):
    """Wait for the retry backoff before the next request. ``rediscover``: then find the coordinator first."""

    rediscover: bool = False


@dataclass(frozen=True, slots=True)
class Leave(Request):
    """Leave the group."""


@dataclass(frozen=True, slots=True)
class Assigned(Notification):
    """These partitions are owned from now on."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Revoked(Notification):
    """These partitions are revoked, also those that are still awaited."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lost(Notification):
    """These partitions are lost, and none of their offsets may be committed."""

    partitions: Partitions
    reason: str


SESSION_TIMED_OUT = "the session timed out without a heartbeat response"

AnyMember = TypeVar("AnyMember", bound=Membership)


def step(member: AnyMember, event: Event, now: float) -> tuple[AnyMember, list[Action]]:
    """Applies an event that no group protocol needs to know. ``now`` is in seconds on the caller's monotonic clock."""
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
    notifications: list[Action] = [Assigned(added)] if added else []
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
    if member.phase is not Phase.REVOKING or (member.revoking & member.awaited and now < member.revoke_by):
        return member, []
    owned = {tp: since for tp, since in member.owned.items() if tp not in member.revoking}
    notifications: list[Action] = [Revoked(member.revoking)] if member.revoking else []
    return replace(member, phase=Phase.STABLE, owned=owned, revoking=NONE), [*notifications, Acknowledge()]


def lose(member: AnyMember, reason: str) -> tuple[AnyMember, list[Action]]:
    """The coordinator may have removed the member: all partitions are lost, and the member joins again."""
    after = replace(member, phase=Phase.JOINING, generation=NO_GENERATION, owned={}, revoking=NONE, reason=reason)
    return after, [*_lost(member, reason), Acknowledge()]


def fail(member: AnyMember, failure: RequestFailed) -> tuple[AnyMember, list[Action]]:
    """A request failed with a fatal error, which ends the membership.

    The coordinator may still have the member: it leaves, so that its partitions need not wait for the session timeout.
    A fenced static member cannot leave: another one has its place.
    """
    after = replace(member, phase=Phase.FAILED, owned={}, revoking=NONE, error=failure.error)
    fenced = getattr(failure.error, "error_code", None) == FENCED_INSTANCE_ID
    return after, [*_lost(member, failure.reason), *([] if fenced else [Leave()])]


def _lost(member: Membership, reason: str) -> list[Action]:
    return [Lost(frozenset(member.owned), reason)] if member.owned else []
