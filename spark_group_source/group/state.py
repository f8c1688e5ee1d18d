"""The membership of one query in its group, as a pure state machine.

      ┌───────────── refused, lost ◀──────────────┐
      ▼                                           │
    JOINING ──Joined──▶ SYNCING ──Synced──▶ STABLE ──▶ REVOKING
      ▲                    │                  │           │     partitions to give up are read by a running
      ├──── refused ───────┘                  │           │     batch: heartbeats go on until it is done
      └──── asked to rejoin, nothing to wait for ◀────────┘

    from everywhere: LEFT when the query ends, FAILED when the group refuses for good, JOINING with nothing owned when
    the session is over: the coordinator has not answered for as long as it keeps a silent member

:func:`step` takes what happened and says what the state is now and what to do about it. It knows no thread, socket
or clock; :mod:`spark_group_source.group.member` performs the actions and reports what came of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.actions import Action, Assigned, Join, Leave, Lost, Pause, Revoked, Sync
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import (
    BatchCompleted,
    BatchPlanned,
    Close,
    Event,
    Joined,
    RequestFailed,
    SessionExtended,
    SubscriptionChanged,
    Synced,
    Tick,
)
from spark_group_source.offsets import Partitions, TopicPartition

NONE: Partitions = frozenset()

SESSION_OVER = "the coordinator has not answered a heartbeat for a whole session"


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
    """One query's membership. ``owned`` maps each partition to the generation since when it is owned unbroken.

    ``revoking`` are owned partitions that must be given up: no new batch may read them. ``in_flight`` are those with
    work that is not committed: read by the batch that Spark works on, or by one whose commit failed. ``revoke_by`` is
    when a drain ends, in the clock's seconds. ``session_ends`` is when the coordinator may have given everything owned
    to others, since it has not confirmed this member for a whole session; it means nothing while nothing is owned.
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
        """Partitions that the next batch may read, with the generation since when they are owned."""
        return {tp: since for tp, since in self.owned.items() if tp not in self.revoking}


Step = tuple[Membership, list[Action]]


def step(now: Membership, event: Event, time: float, revocation_timeout: float) -> Step:
    """What the membership is after ``event``, and what is to be done.

    Args:
        now: the membership so far.
        event: what happened.
        time: seconds on the caller's monotonic clock.
        revocation_timeout: seconds a running batch may hold up the hand-over of its partitions.
    """
    if now.phase in (Phase.LEFT, Phase.FAILED):
        return now, []
    match event:
        case SessionExtended(generation, session_ends):
            # What an earlier generation was told proves nothing about this one.
            return replace(now, session_ends=session_ends) if generation == now.generation else now, []
        case BatchPlanned(partitions):
            return replace(now, in_flight=partitions), []
        case BatchCompleted(uncommitted):
            return _drained(replace(now, in_flight=uncommitted), time)
        case Tick() if now.owned and time >= now.session_ends:
            return _lost(now, SESSION_OVER)
        case Tick():
            return _drained(now, time)
        case Joined(member_id, generation):
            joined = replace(now, phase=Phase.SYNCING, member_id=member_id, generation=generation)
            return joined, [Sync()]
        case Synced():
            return _synced(now, event, time + revocation_timeout)
        case SubscriptionChanged(why):
            return _rejoin(now, why, time + revocation_timeout) if now.phase is Phase.STABLE else (now, [])
        case RequestFailed():
            return _refused(now, event, time + revocation_timeout)
        case Close():
            # A batch in flight may never be confirmed: waiting for it would hold up everybody else.
            gone: list[Action] = [Revoked(frozenset(now.owned))] if now.owned else []
            return replace(now, phase=Phase.LEFT, owned={}, revoking=NONE), [*gone, Leave()]
    raise AssertionError(f"no such event: {event!r}")


def _synced(now: Membership, synced: Synced, revoke_by: float) -> Step:
    if now.phase is not Phase.SYNCING:
        return now, []  # the session ended while the coordinator was waited for: a join is under way
    assigned = synced.assigned
    gained = assigned - now.owned.keys()
    owned = {**now.owned, **dict.fromkeys(gained, now.generation)}
    gone = frozenset(owned) - assigned
    stable = replace(now, phase=Phase.STABLE, owned=owned, revoking=NONE, session_ends=synced.session_ends)
    news: list[Action] = [Assigned(gained)] if gained else []
    if not gone:
        return stable, news
    after, actions = _give_up(stable, gone, "partitions were given up", revoke_by)
    return after, news + actions


def _rejoin(now: Membership, why: str, revoke_by: float) -> Step:
    if now.cooperative:
        return replace(now, phase=Phase.JOINING, reason=why), [Join()]
    # An eager assignor hands out everything anew: all that is owned is given up before the join.
    return _give_up(now, frozenset(now.owned), why, revoke_by)


def _give_up(now: Membership, gone: Partitions, why: str, revoke_by: float) -> Step:
    """Gives partitions up and joins again; first waits for the batch that reads them, if there is one."""
    draining = replace(now, phase=Phase.REVOKING, revoking=gone, revoke_by=revoke_by, reason=why)
    if gone & now.in_flight:
        return draining, []
    return _handed_over(draining, late=NONE)


def _drained(now: Membership, time: float) -> Step:
    if now.phase is not Phase.REVOKING:
        return now, []
    if not now.revoking & now.in_flight:
        return _handed_over(now, late=NONE)
    if time >= now.revoke_by:
        return _handed_over(now, late=now.revoking & now.in_flight)
    return now, []


def _handed_over(now: Membership, late: Partitions) -> Step:
    owned = {tp: since for tp, since in now.owned.items() if tp not in now.revoking}
    after = replace(now, phase=Phase.JOINING, owned=owned, revoking=NONE)
    news: list[Action] = [Revoked(now.revoking, late)] if now.revoking else []
    return after, [*news, Join()]


def _refused(now: Membership, refused: RequestFailed, revoke_by: float) -> Step:
    match refused.action:
        case ErrorAction.MEMBER_ID_REQUIRED:
            return replace(now, phase=Phase.JOINING, member_id=refused.member_id), [Join()]
        case ErrorAction.REJOIN if now.phase is Phase.STABLE:
            return _rejoin(now, refused.why, revoke_by)
        case ErrorAction.REJOIN if now.phase is Phase.REVOKING:
            # The group waits for the drain; the heartbeat that told so kept the session alive.
            return now, []
        case ErrorAction.REJOIN:
            return replace(now, phase=Phase.JOINING, reason=refused.why), [Join()]
        case ErrorAction.RESET_GENERATION | ErrorAction.RESET_MEMBER_ID:
            return _lost(now, refused.why, "" if refused.action is ErrorAction.RESET_MEMBER_ID else now.member_id)
        case ErrorAction.FATAL:
            failed = replace(now, phase=Phase.FAILED, owned={}, revoking=NONE, error=refused.error)
            gone = frozenset(now.owned)
            return failed, [Lost(gone, refused.why)] if gone else []
        case _:
            return _pause(now, rediscover=refused.action is not ErrorAction.RETRY)


def _lost(now: Membership, why: str, member_id: str | None = None) -> Step:
    after = replace(
        now,
        phase=Phase.JOINING,
        member_id=now.member_id if member_id is None else member_id,
        generation=-1,
        owned={},
        revoking=NONE,
        reason=why,
    )
    news: list[Action] = [Lost(frozenset(now.owned), why)] if now.owned else []
    return after, [*news, Join()]


def _pause(now: Membership, rediscover: bool) -> Step:
    pause: list[Action] = [Pause(rediscover)]
    if now.phase in (Phase.JOINING, Phase.SYNCING):
        # A join or sync that was not answered is made anew: the answer may have been lost with the connection.
        return replace(now, phase=Phase.JOINING), [*pause, Join()]
    return now, pause
