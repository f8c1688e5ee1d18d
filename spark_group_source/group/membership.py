"""The membership of one query in its group: the part of its state that both group protocols have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from spark_group_source.errors import GroupSourceError
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
    """One query's membership. ``owned`` maps each partition to the generation that assigned it, if owned ever since.

    ``revoking`` are owned partitions with a pending revocation: no new batch may read them. It waits for those of them
    that Spark's batch ``in_flight`` reads, and for ``uncommitted`` ones, whose commits are pending. ``revoke_by`` is
    when it stops waiting, in seconds of the clock. ``session_ends`` is when the coordinator
    may have assigned the partitions to other members, because no heartbeat succeeded; unused while nothing is owned.
    ``reason`` is why the member joins, for the log.
    """

    phase: Phase = Phase.JOINING
    member_id: str = ""
    generation: int = NO_GENERATION
    owned: Mapping[TopicPartition, int] = field(default_factory=dict)
    revoking: Partitions = NONE
    in_flight: Partitions = NONE
    uncommitted: Partitions = NONE
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
