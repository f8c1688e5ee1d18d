"""A query's tracker of offsets: planned by the query, completed by Spark, committed to the group. Pure.

An offset is always the next one to read, so a completed batch is committed as its end. The life of an offset, from the
assignment of its partition to the commit:

    start (:func:`resume_at`) ──▶ position ──planned──▶ in flight ──completed──▶ completed ──confirmed──▶ committed

**Lineages.** The commits of one partition form a lineage: each continues where the one before ended, whichever member
wrote it. Whoever moves the partition begins a new lineage: another program that commits, ``resetOffsetsOnStart``, a
``startingOffsetsCallback`` that goes back, the loss of records. Its id is the time at which it began, in milliseconds
since 1970, and greater than all ids that its owner knows; ``NO_LINEAGE`` is older than all. The tag of a commit
carries it, and so does each range in the checkpoint. So every later owner can tell whether the group's committed
offset is older or newer than what it logged itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from spark_group_source.group.offsets import CommittedOffset
from spark_group_source.offsets import NO_LINEAGE, UNKNOWN_EPOCH, BatchOffset, OffsetRange, Offsets, TopicPartition


class StartRule(Enum):
    """The rule by which a partition starts where it does; the value is for the log."""

    COMMITTED = "the committed offset"
    LOGGED = "the end in the checkpoint"
    MOVED = "an offset that another program committed"
    REPLAYED = "the end of the replayed batch"
    STARTING_OFFSETS = "startingOffsets"
    RESET = "resetOffsetsOnStart"
    ADDED = "the earliest offset of an added partition"
    RECREATED = "the earliest offset of a recreated topic"
    CALLBACK = "startingOffsetsCallback"


class Start(NamedTuple):
    """Where a newly assigned partition starts, and why; without a ``lineage`` a new one begins there. ``epoch`` is that
    of a leader whose log reached the offset."""

    offset: int
    rule: StartRule
    lineage: int | None = NO_LINEAGE
    epoch: int = UNKNOWN_EPOCH


def resume_at(
    committed: CommittedOffset | None,
    logged: OffsetRange | None,
    *,
    replayed: OffsetRange | None = None,
    given_up: int | None = None,
) -> Start | None:
    """Where a newly assigned partition starts; ``None`` if the group has no commit and the query has logged nothing.

    The later lineage applies; within one lineage the further offset, because a lower commit is one that failed or was
    late. A commit without our tag is somebody's decision, and begins a lineage. Two kinds of it move nothing back:

    Args:
        committed: the group's committed offset, if there is one.
        logged: the range that this query logged last for the partition, if it ever read it.
        replayed: the range that Spark has just read again, with the time of that as its lineage: a decision that was
            made before, for an offset in it, is followed already.
        given_up: the committed offset when this query, in mid-batch, gave the partition up. A consumer that commits
            from there on does not move the group back; it reads what this query reads as well.
    """
    if committed is None:
        return None if logged is None else Start(logged.end, StartRule.LOGGED, logged.lineage)
    lineage = committed.lineage if committed.tagged else None
    if logged is not None:
        if lineage is not None and (lineage, committed.offset) < (logged.lineage, logged.end):
            return Start(logged.end, StartRule.LOGGED, logged.lineage)
        if committed.offset < logged.end:
            if (
                replayed is not None
                and committed.lineage <= replayed.lineage
                and replayed.start <= committed.offset < replayed.end
            ):
                return Start(logged.end, StartRule.REPLAYED, lineage)
            if lineage is None and given_up is not None and given_up <= committed.offset:
                return Start(logged.end, StartRule.LOGGED, logged.lineage)
    return Start(committed.offset, StartRule.MOVED if lineage is None else StartRule.COMMITTED, lineage)


MAX_REJECTIONS = 3
"""Rejected commits of a partition in a row after which no revocation waits for it. The first may be the answer of a
coordinator with old metadata."""


def may_be_same(topic_id: str, other: str) -> bool:
    """Whether two ids may be those of one topic; an empty one is unknown."""
    return not (topic_id and other) or topic_id == other


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One owned partition with a position.

    Attributes:
        position: the next offset to plan.
        lineage: the lineage of the position.
        topic_id: the id of the topic in which the position is; empty if unknown.
        epoch: the leader epoch of the position.
        completed: the end of what Spark has completed, which may be committed.
        committed: what the group has of this lineage; ``None`` if that is nothing or unknown.
        rejections: how many times in a row the coordinator rejected a commit, because it does not know the partition.
        reset: whether ``resetOffsetsOnStart`` moved it, and no logged batch says so.
    """

    position: int
    lineage: int = NO_LINEAGE
    topic_id: str = ""
    epoch: int = UNKNOWN_EPOCH
    completed: int = 0
    committed: int | None = None
    rejections: int = 0
    reset: bool = False

    @property
    def pending(self) -> bool:
        """Whether something is completed and not known to be committed. It never goes back behind a commit."""
        return self.committed is None or self.completed > self.committed

    def continues(self, read: OffsetRange) -> bool:
        """Whether the position lies behind ``read``, in the same topic and lineage."""
        return may_be_same(self.topic_id, read.topic_id) and self.lineage == read.lineage and read.end <= self.position


Owned = Mapping[TopicPartition, OwnedPartition]


@dataclass
class OffsetTracker:
    """Offsets of one query. Not thread-safe: its owner holds a lock.

    ``logged`` is the last range that Spark has logged, of every partition this query ever read. ``owned`` are the
    owned partitions that have a position. ``in_flight`` are the ranges of the batch in flight. ``given_up`` are the
    committed offsets of partitions that were given up in mid-batch. ``deleted`` are partitions that no broker knows.
    ``unsettled_until`` is until when a commit without an answer may still arrive, in seconds of the tracker's clock,
    also after the partition was moved or its topic recreated.
    """

    logged: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    owned: dict[TopicPartition, OwnedPartition] = field(default_factory=dict)
    in_flight: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    given_up: dict[TopicPartition, int] = field(default_factory=dict)
    deleted: frozenset[TopicPartition] = frozenset()
    unsettled_until: dict[TopicPartition, float] = field(default_factory=dict)

    def start(
        self, tp: TopicPartition, start: Start, lineage: int, committed: CommittedOffset | None
    ) -> OwnedPartition:
        """A newly assigned partition starts, which is to be committed at once if the group has it not.

        Args:
            tp: the partition.
            start: where it starts.
            lineage: the lineage of the start, also of one that begins a new lineage.
            committed: the group's committed offset; ``None`` if the next commit replaces it in any case.
        """
        partition = OwnedPartition(start.offset, lineage, epoch=start.epoch, completed=start.offset)
        if start.rule is StartRule.LOGGED and tp in self.in_flight:
            # The checkpointed end offset is that of the batch in flight, of which nothing is completed.
            partition.completed = self.in_flight[tp].start
        # The commit of another program gets our tag and lineage at once, unless the partition did not start there.
        same_lineage = committed is not None and (
            committed.lineage == lineage if committed.tagged else start.rule is StartRule.LOGGED
        )
        partition.committed = committed.offset if committed is not None and same_lineage else None
        self.owned[tp] = partition
        self.given_up.pop(tp, None)
        return partition

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """The query no longer owns these: it plans and commits nothing of them from here on."""
        for tp in partitions:
            self.unsettled_until.pop(tp, None)  # the coordinator rejects what arrives now
            partition = self.owned.pop(tp, None)
            if partition is not None and partition.committed is not None and tp in self.in_flight:
                self.given_up[tp] = partition.committed

    def forget(self, ids: Mapping[str, str]) -> set[TopicPartition]:
        """These topics were recreated, with these ids: forgets all offsets in the former ones.

        Returns the owned partitions whose position was one of them. Others have started in the new topic already.
        """
        former = self.in_other_topics(ids)
        for by_partition in (self.logged, self.owned, self.in_flight):
            for tp in [tp for tp, at in by_partition.items() if at.topic_id != ids.get(tp.topic, at.topic_id)]:
                del by_partition[tp]
        self.given_up = {tp: offset for tp, offset in self.given_up.items() if tp in self.logged}
        return former

    def in_other_topics(self, ids: Mapping[str, str]) -> set[TopicPartition]:
        """Owned partitions with a position in a topic of another id than the one in ``ids``."""
        return {tp for tp, owned in self.owned.items() if owned.topic_id != ids.get(tp.topic, owned.topic_id)}

    def planned(self, batch: BatchOffset) -> None:
        """Spark gets this batch.

        A partition that was lost since the batch was planned gets no position from it, nor one that has started
        elsewhere since: the position would be out of date.
        """
        self.logged |= batch.ranges
        self.in_flight = {tp: read for tp, read in batch.ranges.items() if read.size}
        for tp, read in self.in_flight.items():
            partition = self.owned.get(tp)
            if partition is not None and (partition.position, partition.lineage) == (read.start, read.lineage):
                partition.position = read.end

    def completed(self) -> None:
        """Spark has completed the batch in flight.

        It commits nothing of a partition that was lost during the batch and came back elsewhere: in another lineage, or
        as one of a recreated topic.
        """
        for tp, read in self.in_flight.items():
            partition = self.owned.get(tp)
            if partition is not None and partition.continues(read):
                partition.completed = max(read.end, partition.completed)
        self.in_flight = {}

    def move(self, tp: TopicPartition, offset: int, lineage: int, epoch: int) -> None:
        """Moves an owned partition to an offset before what was read and committed."""
        before = self.owned[tp]
        self.owned[tp] = OwnedPartition(offset, lineage, before.topic_id, epoch, completed=offset)
        self.logged[tp] = OffsetRange(*tp, offset, offset, before.topic_id, epoch, lineage)

    def pending(self) -> dict[TopicPartition, OwnedPartition]:
        """Partitions with a pending commit.

        A rejected commit is pending until the group revokes the partition, or no broker knows it: a coordinator may
        have old metadata for a while. With ``assign`` no revocation would end the retries.
        """
        return {
            tp: partition
            for tp, partition in self.owned.items()
            if partition.pending and not (partition.rejections and tp in self.deleted)
        }

    def uncommitted(self) -> set[TopicPartition]:
        """Partitions with a pending commit for which a revocation waits. After :data:`MAX_REJECTIONS` it waits no
        longer: that topic may be deleted."""
        return {tp for tp, partition in self.pending().items() if partition.rejections < MAX_REJECTIONS}

    def commit_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes the committed offsets of these pending again, unchanged."""
        for tp in partitions:
            if tp in self.owned:
                self.owned[tp].committed = None

    def commits_rejected(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The coordinator has rejected commits of these partitions; returns those that were not rejected before."""
        rejected = self.owned.keys() & set(partitions)
        for tp in rejected:
            self.owned[tp].rejections += 1
        return {tp for tp in rejected if self.owned[tp].rejections == 1}

    def confirmed(self, offsets: Offsets, sent: Owned) -> None:
        """The group has committed these offsets of partitions as they were owned when the commit was ``sent``."""
        for tp, offset in offsets.items():
            partition = self.owned.get(tp)
            if partition is not None and partition is sent[tp]:
                partition.rejections = 0
                partition.committed = max(offset, -1 if partition.committed is None else partition.committed)

    def unanswered(self, sent: Iterable[TopicPartition], until: float) -> None:
        """No answer came to commits of these partitions: they may be applied late, after later ones."""
        self.unsettled_until |= dict.fromkeys(self.owned.keys() & set(sent), until)

    def unsettled(self, now: float) -> set[TopicPartition]:
        """Partitions whose committed offset a late commit may still move back."""
        return {tp for tp, until in self.unsettled_until.items() if now < until}

    def verify(self, found: Mapping[TopicPartition, CommittedOffset]) -> set[TopicPartition]:
        """Makes the commits pending again that a late one of ours has moved back, as the group's offsets show.

        Returns their partitions.
        """
        moved = {
            tp
            for tp, commit in found.items()
            if (partition := self.owned.get(tp)) is not None
            and partition.committed is not None
            and commit.tagged
            and (commit.lineage, commit.offset) < (partition.lineage, partition.committed)
        }
        self.commit_again(moved)
        return moved
