"""What a membership asks its thread to do: the actions that :func:`spark_group_source.group.state.step` returns."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.offsets import Partitions


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup, with what is owned."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup; as the leader, with everybody's share."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a moment before the next request; ``rediscover`` to ask for the coordinator first."""

    rediscover: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """Send LeaveGroup."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions are owned from now on."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions are given up in order; ``late`` are those whose batch did not end in time."""

    partitions: Partitions
    late: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions were taken away: nothing of them may be committed any more."""

    partitions: Partitions
    why: str


Action = Join | Sync | Pause | Leave | Assigned | Revoked | Lost
