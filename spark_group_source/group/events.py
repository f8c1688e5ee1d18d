"""Inputs and outputs of a membership's state machine that both group protocols have.

A handshake adds the events and actions of its protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.offsets import Partitions


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
class BatchPlanned(Event):
    """Spark got a batch, which reads ``partitions``."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class BatchCompleted(Event):
    """The batch is completed; commits of ``uncommitted`` partitions are pending."""

    uncommitted: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class CommitsChanged(Event):
    """Commits succeeded, or became due: those of ``uncommitted`` partitions are pending now."""

    uncommitted: Partitions


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
    """Report the owned partitions to the coordinator: some were revoked or lost. Only the handshake gets this."""


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
    """These partitions are revoked. The batch that reads ``in_flight`` ones did not end in time; what was completed of
    ``uncommitted`` ones could not be committed in time."""

    partitions: Partitions
    in_flight: Partitions = frozenset()
    uncommitted: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Lost(Notification):
    """These partitions are lost, and none of their offsets may be committed."""

    partitions: Partitions
    reason: str
