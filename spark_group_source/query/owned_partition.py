"""One owned partition, from its assignment to its revocation or loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_group_source.group.membership import NO_GENERATION
from spark_group_source.offsets import NO_LINEAGE, UNKNOWN_EPOCH, OffsetRange, TopicPartition, may_be_same
from spark_group_source.query.starts.rules import Start, StartRule

MAX_LOOKUPS = 2
"""Lookups of a start, one of which may be cut short by the next heartbeat, after which no revocation waits for it."""

MAX_REJECTIONS = 3
"""Rejected commits of a partition in a row after which no revocation waits for it. The first may be the answer of a
coordinator with old metadata."""


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One partition from its assignment to its revocation or loss. A rewind or a recreated topic replaces the record,
    so that nothing that was looked up or sent before counts for it.

    Attributes:
        since: the generation that assigned it, and since which it has been owned.
        assigned_id: the id of the topic in which the group assigned it; empty if the group assigns by name.
        lookups: how many lookups of its start have ended: a revocation waits for :data:`MAX_LOOKUPS`.
        in_lookup: whether a thread is looking its start up.
        start: where it started, and by which rule; ``None`` until that is known, and then it has no position.
        position: the next offset to plan.
        lineage: the lineage of the position.
        topic_id: the id of the topic in which the position is; empty if unknown.
        epoch: the leader epoch of the position.
        completed: the end of what Spark has completed, which may be committed.
        checkpoint: the id of the checkpoint, if ``completed`` is the end of a batch in its log; else empty.
        committed: what the group has of this lineage; ``None`` if ``completed`` is to be committed in any case.
        rejections: how many times in a row the coordinator rejected a commit, because it does not know the partition.
        deleted: whether no broker knows it.
        reset: whether ``resetOffsetsOnStart`` moved it, and no logged batch shows it.
    """

    since: int = NO_GENERATION
    assigned_id: str = ""
    lookups: int = 0
    in_lookup: bool = False
    start: Start | None = None
    position: int = 0
    lineage: int = NO_LINEAGE
    topic_id: str = ""
    epoch: int = UNKNOWN_EPOCH
    completed: int = 0
    checkpoint: str = ""
    committed: int | None = None
    rejections: int = 0
    deleted: bool = False
    reset: bool = False

    @property
    def pending(self) -> bool:
        """Whether something may be committed and is not known to be. Within a lineage no commit goes back.

        A rejected commit is pending until the group revokes the partition, or no broker knows it: a coordinator may
        have old metadata for a while. With ``assign`` no revocation would end the retries.
        """
        if self.start is None or (self.rejections and self.deleted):
            return False
        return self.committed is None or self.completed > self.committed

    @property
    def has_work(self) -> bool:
        """Whether Spark has read something up to what is completed; else that is where the partition started."""
        if self.start is None:
            return False
        logged = self.start.rule in (StartRule.LOGGED, StartRule.REPLAYED)
        return logged or self.completed != self.start.offset

    def continues(self, read: OffsetRange) -> bool:
        """Whether the position is at or after the end of ``read``, in the same topic and lineage."""
        return may_be_same(self.topic_id, read.topic_id) and self.lineage == read.lineage and read.end <= self.position

    def complete(self, end: int, checkpoint: str) -> None:
        """Spark has completed and logged a batch up to ``end``."""
        if end >= self.completed:  # 4: never backwards
            # In this order: the committer reads the offset first, without the lock.
            self.checkpoint = checkpoint
            self.completed = end

    def unstarted(self, lookups: int) -> OwnedPartition:
        """The record of this partition with a start that is still to be found."""
        return OwnedPartition(self.since, self.assigned_id, lookups)


Owned = Mapping[TopicPartition, OwnedPartition]
