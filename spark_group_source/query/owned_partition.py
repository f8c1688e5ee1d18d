"""One owned partition, from its assignment to its revocation or loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.membership import NO_GENERATION
from spark_group_source.offsets import NO_LINEAGE, UNKNOWN_EPOCH, OffsetRange, TopicPartition, may_be_same
from spark_group_source.query.starts.rules import Start, StartRule

MAX_LOOKUPS = 2
"""Number of lookups of a start position after which no revocation waits for it. One lookup is not enough, because the
next heartbeat may cut it short."""

MAX_REJECTIONS = 3
"""Number of rejected commits of a partition in a row after which no revocation waits for another try. One rejection is
not enough, because the coordinator may have old metadata."""


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One partition from its assignment to its revocation or loss. A rewind or a recreated topic replaces the record,
    so that earlier lookups and requests do not affect the new one.

    Attributes:
        since: the generation that assigned it.
        assigned_id: the id of the topic in which the group assigned it; empty if the group assigns by name.
        lookups: how many lookups of its start have ended. A revocation waits for at most :data:`MAX_LOOKUPS`.
        in_lookup: whether a thread is looking up its start.
        start: where it started, and by which rule. Until that is known, it is ``None``, and the partition has no
            position.
        position: the next offset to plan.
        lineage: the lineage of the position.
        topic_id: the id of the topic in which the position is; empty if unknown.
        epoch: the leader epoch of the position.
        completed: the end of the last completed batch, which may be committed.
        checkpoint: the id of the checkpoint, if ``completed`` is the end of a batch in its log; else empty.
        committed: the group's committed offset in this lineage; ``None`` if ``completed`` is to be committed whatever
            the group has. The events that set ``None`` are a start (:func:`.offset_tracker._committed_in` has the
            cases), a rewind (:meth:`moved_to`), the first logged batch after a reset (:meth:`note_reset_logged`), a
            late commit (:meth:`note_late_commit`), and a renewal (:meth:`renew`).
        rejections: how many times in a row the coordinator rejected a commit, because it does not know the partition.
        deleted: whether no broker knows the partition.
        reset: whether ``resetOffsetsOnStart`` moved the partition, and no logged batch contains it yet.
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

    def copy(self) -> OwnedPartition:
        """A copy of the record. ``dataclasses.replace`` would take four times as long, and each plan copies all
        records."""
        return OwnedPartition(*_values(self))

    @property
    def needs_lookup(self) -> bool:
        """Whether its start is unknown, and no thread is looking up that start."""
        return self.start is None and not self.in_lookup

    @property
    def pending(self) -> bool:
        """Whether an offset may be committed and its commit is not confirmed. Within a lineage, no commit goes back.

        A rejected commit stays pending until the group revokes the partition or no broker knows it, because a
        coordinator may have old metadata for a while. With ``assign``, there is no revocation to end the retries.
        """
        if self.start is None or (self.deleted and self.rejections):
            return False
        return self.committed is None or self.completed > self.committed

    @property
    def delays_revocation(self) -> bool:
        """Whether a revocation waits for its start or commit.

        Without a committed start, the next owner could start at a later offset. A revocation waits for at most
        :data:`MAX_LOOKUPS` lookups, because the partition may have no leader, and for at most :data:`MAX_REJECTIONS`
        rejected commits, because the topic may be deleted.
        """
        if self.start is None:
            return self.lookups < MAX_LOOKUPS
        return self.pending and self.rejections < MAX_REJECTIONS

    @property
    def has_work(self) -> bool:
        """Whether Spark has completed a batch of this partition. If not, ``completed`` is where the partition
        started."""
        if self.start is None:
            return False
        if self.start.rule in (StartRule.LOGGED, StartRule.REPLAYED):
            return True
        return self.completed != self.start.offset

    def is_in(self, topic_id: str) -> bool:
        """Whether its position is in the topic with exactly this id."""
        return self.start is not None and self.topic_id == topic_id

    def may_be_in(self, topic_id: str) -> bool:
        """Whether its position may be in the topic with this id; an empty id is unknown."""
        return may_be_same(self.topic_id, topic_id)

    def continues(self, read: OffsetRange) -> bool:
        """Whether the position is at or after the end of ``read``, in the same topic and lineage."""
        if self.start is None or self.lineage != read.lineage:
            return False
        return self.may_be_in(read.topic_id) and read.end <= self.position

    def is_at_beginning(self, read: OffsetRange) -> bool:
        """Whether the position is where ``read`` begins, in the same topic and lineage."""
        if not self.may_be_in(read.topic_id):
            return False
        return (self.position, self.lineage) == (read.start, read.lineage)

    def has_moved_since(self, before: OwnedPartition) -> bool:
        """Whether the topic or the position is no longer the one in ``before``, or the partition has no position
        now."""
        return self.start is None or (self.topic_id, self.position) != (before.topic_id, before.position)

    def is_ahead_of(self, found: CommittedOffset) -> bool:
        """Whether a late commit of this query has moved the group back to an offset before the confirmed one."""
        if self.committed is None or not found.tagged:
            return False
        return (found.lineage, found.offset) < (self.lineage, self.committed)

    def is_committed_by(self, found: CommittedOffset | None) -> bool:
        """Whether the group's committed offset covers the last completed batch, in the lineage of that batch."""
        if found is None or not found.tagged:
            return False
        return found.lineage == self.lineage and found.offset >= self.completed

    def start_at(self, start: Start, lineage: int, topic_id: str, epoch: int) -> None:
        """Starts the partition at ``start``, in this lineage of the topic with this id.

        ``epoch`` is the leader epoch of that offset.
        """
        self.start, self.lineage, self.topic_id, self.epoch = start, lineage, topic_id, epoch
        self.position = start.offset

    def plan(self, read: OffsetRange) -> None:
        """Notes that Spark gets a batch that reads ``read``."""
        self.position = read.end
        self.epoch = max(read.epoch, self.epoch)  # the partition may have started again in a later epoch

    def complete(self, end: int, checkpoint: str) -> None:
        """Notes that Spark has completed and logged a batch up to ``end``."""
        if end < self.completed:  # commits never go backwards
            return
        # In this order: the committer reads the offset first, without the lock.
        self.checkpoint = checkpoint
        self.completed = end

    def confirm(self, offset: int) -> None:
        """Notes that the group has committed ``offset``."""
        self.rejections = 0
        if self.committed is None or offset > self.committed:
            self.committed = offset

    def note_reset_logged(self) -> None:
        """Notes that a logged batch contains the reset, so that the offset is committed again without the tag of a
        reset."""
        self.reset = False
        self._make_pending()

    def note_late_commit(self) -> None:
        """Notes that a late commit has moved the group back, so that the offset is committed again."""
        self._make_pending()

    def renew(self) -> None:
        """Commits the same offset again, before the brokers delete it because of its age."""
        self._make_pending()

    def _make_pending(self) -> None:
        self.committed = None

    def unstarted(self, lookups: int) -> OwnedPartition:
        """A new record of this partition, whose start is still to be found."""
        return OwnedPartition(self.since, self.assigned_id, lookups)

    def moved_to(self, offset: int, epoch: int, lineage: int) -> OwnedPartition:
        """A new record of this partition after a rewind to ``offset``, which is committed even if the group has a
        later one."""
        moved = replace(self, position=offset, completed=offset, epoch=epoch, lineage=lineage)
        moved.committed = None
        moved.checkpoint = ""
        moved.rejections = 0
        moved.reset = False
        return moved


Owned = Mapping[TopicPartition, OwnedPartition]


_values = attrgetter(*(each.name for each in fields(OwnedPartition)))
