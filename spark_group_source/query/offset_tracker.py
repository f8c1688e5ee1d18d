"""The offsets of one query: where it reads, what Spark has completed, and what the group has committed.

Each owned partition has one record, :class:`OwnedPartition`. An offset is always the next one to read, so a completed
batch is committed as its end. The life of an offset, from the assignment of its partition to the commit:

     partitions_assigned: a record without a position                       member's thread
              │ record_starts: the commit, the checkpoint or an option       the thread that looked it up
              ▼
          position ─────── planned: Spark gets the batch ─────▶ in flight    query's thread
              │                                                    │
              │ its start may be committed at once                 │ completed: Spark has finished it
              ▼                                                    ▼
          completed ◀──────────────────────────────────────────────┘         query's thread
              │ pending, then confirmed: the coordinator has accepted it     any thread
              ▼
          committed

From each state: remove, when it is revoked or lost, to no record; rewind, when records were lost, to another position;
restart_topics and drop_other_topics, when its topic was recreated, to no position; renew and verify to pending.

**When may an offset be committed?** When Spark has completed the batch that ends there, or when the partition starts
there, and only in the assignment, topic and lineage in which that happened: ``pending`` lists the commits.

**By whom?** By the query's threads or the member's, through :class:`.committer.Committer`, one commit of a query at a
time. What stays pending is sent again every ``offsetCommit.retryIntervalMs``, also while a revocation waits for it.

**What happens at a revocation?** The member waits until none of the partitions is in :meth:`OffsetTracker.awaited`, at
most for the revocation timeout. Then, or at once if the assignment is lost, :meth:`OffsetTracker.remove` drops the
records. Lookups and commits that are still under way were begun with a record that is gone: their answers change
nothing. A batch that is completed later counts only if the query owns the partition again, in the same topic and
lineage, and at or after the batch's end.

What a commit, a logged range and a lineage say about the position of a partition is told once, under "Lineages" in
``DESIGN.md``. Comments in quotation marks name a sentence of the contract, which is in the same document.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from spark_group_source.clock import Clock, monotonic
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.coordinator import LATE_REQUESTS
from spark_group_source.group.membership import NO_GENERATION, Membership
from spark_group_source.offsets import (
    BatchOffset,
    OffsetRange,
    Offsets,
    Partitions,
    TopicPartition,
    may_be_same,
    topics_of,
)
from spark_group_source.query.lineages import Lineages
from spark_group_source.query.offset_history import LoggedOffsets, OffsetHistory
from spark_group_source.query.owned_partition import MAX_LOOKUPS, Owned, OwnedPartition
from spark_group_source.query.starts.pinned import PinnedStarts
from spark_group_source.query.starts.rules import Start, StartRule

UNDECIDED = -1
"""The offset of a partition whose start this query has still to decide."""


class OffsetTracker:
    """The offsets of one query, for the member's thread and the query's thread. Each method is one step under the lock,
    which no wait ever holds.

    ``_lock`` guards everything:
    - ``_owned``, the record of each partition that this query owns
    - ``_history``, what the query knows of the partitions that it has read, also of those that others own now
    - ``_lineages``, which gives out new lineages
    - ``_in_flight``, the batch in flight, and ``_reading``, what it reads, from just before it is planned
    - ``_unsettled``, until when a commit without an answer may still arrive, in seconds of the clock, also after a loss
    - ``_was_assigned``, whether this query has ever owned a partition
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._history = OffsetHistory()
        self._lineages = Lineages()
        self._in_flight: BatchOffset | None = None
        self._reading: Partitions = frozenset()
        self._unsettled: dict[TopicPartition, float] = {}
        self._was_assigned = False

    def restore(self, logged: BatchOffset, pinned: PinnedStarts) -> None:
        """Begins with the checkpoint's ranges and pinned starts. Caller: the query, before the member starts."""
        with self._lock:
            self._history.restore(logged, pinned)
            self._lineages.note(read.lineage for read in logged.ranges.values())

    def pinned_starts(self) -> PinnedStarts:
        """How partitions start that no logged batch holds yet."""
        with self._lock:
            return self._history.pinned

    # Assigned, but without a position.

    def partitions_assigned(self, partitions: Partitions, me: Membership) -> None:
        """The query, as ``me``, owns these from now on, without a position so far. Caller: the member's thread."""
        since, ids = me.owned, me.topic_ids
        with self._lock:
            for tp in partitions:
                self._owned[tp] = OwnedPartition(since.get(tp, NO_GENERATION), str(ids.get(tp.topic, "")))
            self._history.pinned = self._history.pinned.assign(partitions)
            self._was_assigned |= bool(partitions)

    @property
    def was_assigned(self) -> bool:
        """Whether this query has ever owned a partition."""
        with self._lock:
            return self._was_assigned

    def ahead_of_commits(self, me: Membership) -> dict[TopicPartition, int]:
        """Where this query stands in partitions whose committed offset does not tell, because its own decision or work
        is not committed yet: :data:`UNDECIDED` without a start or before a reset, else the offset to be committed."""
        ahead = {}
        with self._lock:
            for tp, owned in self._owned_by(me.owned).items():
                if owned.start is None or tp in self._history.pinned.resets:
                    ahead[tp] = UNDECIDED
                elif owned.pending:
                    ahead[tp] = owned.completed
        return ahead

    def unresolved(self, me: Membership) -> Partitions:
        """Owned partitions without a position that no thread is looking up."""
        unresolved = set()
        with self._lock:
            for tp, owned in self._owned_by(me.owned).items():
                if owned.needs_lookup:
                    unresolved.add(tp)
        return frozenset(unresolved)

    def _owned_by(self, since: Mapping[TopicPartition, int]) -> dict[TopicPartition, OwnedPartition]:
        """The records of partitions that are owned since the same assignment as in a snapshot of the membership."""
        # "Only partitions that the query owns now, under the generation in which it was planned".
        return {tp: owned for tp, owned in self._owned.items() if since.get(tp) == owned.since}

    @contextmanager
    def start_lookup(self, partitions: Partitions) -> Iterator[Owned]:
        """Begins a lookup of those of ``partitions`` that need one. The other thread leaves these alone."""
        mine = {}
        with self._lock:
            # Not those lost since the caller's snapshot, which have no record, or another one.
            for tp in partitions & self._owned.keys():
                owned = self._owned[tp]
                if owned.needs_lookup:
                    owned.in_lookup = True
                    mine[tp] = owned
        try:
            yield mine
        finally:
            with self._lock:
                for owned in mine.values():
                    owned.in_lookup = False

    def start_denied(self, partitions: Partitions) -> None:
        """These may not be read now: no revocation waits for their starts. Caller: the thread that looks starts up."""
        with self._lock:
            for tp in partitions & self._owned.keys():
                self._owned[tp].lookups = max(self._owned[tp].lookups, MAX_LOOKUPS)

    def assigned_in(self, ids: Mapping[str, str], partitions: Partitions) -> Partitions:
        """``partitions`` without those in topics that are assigned by other ids, which others may own in these, and
        without those in topics that no broker returned: they may be recreated."""
        assigned = set()
        with self._lock:
            for tp in partitions:
                if tp.topic in ids and may_be_same(self._assigned_id(tp), ids[tp.topic]):
                    assigned.add(tp)
        return frozenset(assigned)

    def _assigned_id(self, tp: TopicPartition) -> str:
        """The id of the topic in which the group assigned the partition; empty if unknown."""
        owned = self._owned.get(tp)
        if owned is None:
            return ""
        return owned.assigned_id

    def logged(self, partitions: Partitions, ids: Mapping[str, str]) -> LoggedOffsets:
        """What this query has logged of partitions that start in topics with these ids.

        It notes recreated topics for :meth:`take_recreated`. Caller: the thread that began the lookup.
        """
        with self._lock:
            return self._history.of_starting(partitions, ids)

    def take_recreated(self) -> set[str]:
        """The topics that :meth:`logged` has found to be recreated since the last call. Caller: the query."""
        with self._lock:
            return self._history.take_recreated()

    # Assigned ──▶ position.

    def record_starts(
        self,
        lookup: Owned,
        starts: Mapping[TopicPartition, Start],
        committed: Mapping[TopicPartition, CommittedOffset],
        ids: Mapping[str, str],
        began_at: float,
    ) -> dict[TopicPartition, Start]:
        """Records the start positions of partitions that have the same record as when their ``lookup`` began.

        Of the others, a next owner may have moved them since: they are looked up again. ``committed`` is what the group
        has, and ``ids`` are the topics' ids, as far as they are known. ``began_at`` is when the lookup began, in
        seconds since 1970: what others decide later applies. Returns the starts that were recorded.
        """
        with self._lock:
            # "Fixed rules say where a newly owned partition starts": those of this assignment, not of an earlier one.
            unchanged = self._unchanged(lookup)
            recorded = {}
            for tp, start in starts.items():
                if tp in unchanged:
                    recorded[tp] = start
            self._lineages.note(commit.lineage for commit in committed.values())
            for tp, lineage in self._lineages_of(recorded, began_at).items():
                self._start(tp, recorded[tp], lineage, committed.get(tp), ids.get(tp.topic, ""))
            for tp in unchanged:
                lookup[tp].lookups += 1
            self._pin(recorded)
            return recorded

    def _unchanged(self, records: Owned) -> set[TopicPartition]:
        """The partitions that still have these records."""
        unchanged = set()
        for tp, owned in records.items():
            if self._owned.get(tp) is owned:
                unchanged.add(tp)
        return unchanged

    def _lineages_of(self, starts: Mapping[TopicPartition, Start], began_at: float) -> dict[TopicPartition, int]:
        """The lineages in which partitions start. All those that are moved begin the same new one."""
        lineages = {}
        moved = []
        for tp, start in starts.items():
            if start.lineage is None:
                moved.append(tp)
            else:
                lineages[tp] = start.lineage
        if moved:
            lineages |= dict.fromkeys(moved, self._lineages.begin(began_at))
        return lineages

    def _start(
        self, tp: TopicPartition, start: Start, lineage: int, committed: CommittedOffset | None, topic_id: str
    ) -> None:
        """An owned partition starts. The start is committed at once, unless the group has it already.

        ``committed`` is the group's committed offset; ``None`` if the next commit replaces it in any case.
        """
        owned = self._owned[tp]
        logged = self._history.range_in(tp, topic_id)
        owned.start_at(start, lineage, topic_id, _epoch_at(start, logged, committed))
        owned.completed = self._completed_at(tp, start)
        owned.checkpoint = self._history.checkpoint_with(tp, owned)
        owned.reset = tp in self._history.pinned.resets or _is_unlogged_reset(committed, logged)
        owned.committed = _committed_in(lineage, start, committed, logged)
        self._history.started(tp, start, lineage, committed)

    def _completed_at(self, tp: TopicPartition, start: Start) -> int:
        """Up to where Spark has completed a partition that starts."""
        if start.rule is not StartRule.LOGGED:
            return start.offset
        read = self._read_in_flight(tp)
        if read is None:
            return start.offset
        # The checkpointed end offset is that of the batch in flight, of which nothing is completed.
        return read.start

    def _pin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Keeps the starts that ``startingOffsets`` decided: if one is lost before its batch is logged, it stays."""
        to_pin = {}
        for tp, start in starts.items():
            if start.rule in (StartRule.STARTING_OFFSETS, StartRule.RESET):
                to_pin[tp] = start
        self._history.pinned = self._history.pinned.pin(to_pin)

    # Position ──▶ in flight ──▶ completed.

    def positions(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """Copies of the readable partitions that have a position. Caller: the query."""
        positions = {}
        readable = me.readable
        with self._lock:
            for tp, owned in self._owned_by(readable).items():
                if owned.start is not None:
                    positions[tp] = owned.copy()
        return positions

    def advance_epochs(self, copies: Owned, now: Offsets) -> None:
        """Leaders of these later epochs hold all records before the positions in ``copies``. Caller: the query.

        A partition that the other thread has started or moved since keeps its epoch.
        """
        with self._lock:
            for tp, epoch in now.items():
                owned, copy = self._owned.get(tp), copies[tp]
                if owned is not None and (owned.position, owned.epoch) == (copy.position, copy.epoch):
                    owned.epoch = epoch
                copy.epoch = epoch

    @property
    def in_flight(self) -> BatchOffset | None:
        """The batch that Spark has and has not completed, as far as the source knows."""
        with self._lock:
            return self._in_flight

    def _read_in_flight(self, tp: TopicPartition) -> OffsetRange | None:
        """What the batch in flight reads of a partition."""
        if self._in_flight is None:
            return None
        read = self._in_flight.ranges.get(tp)
        if read is None or read.size == 0:
            return None
        return read

    def reserve(self, partitions: Partitions) -> None:
        """A batch that is to be planned next reads these: a revocation waits for it. Caller: the member, for the query,
        in the same step in which it checks that they are still readable."""
        with self._lock:
            self._reading = partitions

    def planned(self, batch: BatchOffset) -> None:
        """Notes that Spark gets ``batch``, and moves its partitions to the ends of their ranges. Caller: the query.

        The query may have lost a partition since :meth:`reserve`. Such a partition gets no position from the batch,
        even if the query owns the partition again and has started it elsewhere. If a lookup of its start is still
        running, the lookup may return the start of this batch, whose records would then be read twice: the partition
        gets a new record, so that the result is dropped and the start is looked up again.
        """
        with self._lock:
            self._history.planned(batch)
            self._in_flight = batch
            for read in batch.reads():
                owned = self._owned.get(read.tp)
                if owned is None:
                    continue
                if owned.start is None:
                    self._owned[read.tp] = owned.unstarted(owned.lookups)
                elif owned.is_at_beginning(read):
                    owned.plan(read)

    def completed(self, end: BatchOffset) -> bool:
        """Spark has completed the batch that ends at ``end``, and logged it before; returns whether it was in flight.
        Any other offset has no effect. Caller: the query.

        Nothing is committed of a partition that was lost during the batch and came back elsewhere: in another lineage,
        or as one of a recreated topic.
        """
        with self._lock:
            if self._in_flight is None or end != self._in_flight:  # "The source commits only completed work"
                return False
            for read in end.reads():
                owned = self._owned.get(read.tp)
                if owned is not None and owned.continues(read):
                    owned.complete(read.end, end.checkpoint)
            self._history.in_log = end
            self._in_flight, self._reading = None, frozenset()
            for tp, owned in self._owned.items():
                if owned.reset and tp in self._history.ranges:
                    owned.reset, owned.committed = False, None  # committed again without the tag of a reset
            return True

    # Completed ──▶ committed.

    def pending(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """The pending commits of partitions that ``me`` owns: :meth:`confirmed` and others take them."""
        pending = {}
        with self._lock:
            for tp, owned in self._owned_by(me.owned).items():
                if owned.pending:
                    pending[tp] = owned
        return pending

    def completed_work(self) -> dict[TopicPartition, OwnedPartition]:
        """The pending commits of completed batches, also of partitions that the group may have taken away by now."""
        work = {}
        with self._lock:
            for tp, owned in self._owned.items():
                if owned.pending and owned.has_work:
                    work[tp] = owned
        return work

    def confirmed(self, offsets: Offsets, sent: Owned) -> None:
        """The group has committed ``offsets``, a part of the commits that were ``sent``."""
        with self._lock:
            for tp, offset in offsets.items():
                owned = self._owned.get(tp)
                if owned is not None and owned is sent[tp]:  # not one of an earlier assignment
                    owned.confirm(offset)
            self._history.committed(offsets.keys())

    def commits_rejected(self, rejected: Owned) -> Partitions:
        """The coordinator has rejected these commits; returns the partitions whose commits were not rejected before."""
        newly = set()
        with self._lock:
            for tp in self._unchanged(rejected):
                rejected[tp].rejections += 1
                if rejected[tp].rejections == 1:
                    newly.add(tp)
        return frozenset(newly)

    def expect_late_commits(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these partitions may be applied late, after later ones: no answer to them came, or none to this
        process."""
        with self._lock:
            self._unsettled |= dict.fromkeys(partitions, self._clock() + LATE_REQUESTS)

    def unsettled(self, me: Membership) -> Partitions:
        """Partitions of ``me`` whose committed offset a late commit may still move back."""
        unsettled = set()
        with self._lock:
            now = self._clock()
            for tp, until in self._unsettled.items():
                if now < until and tp in me.owned:
                    unsettled.add(tp)
        return frozenset(unsettled)

    def verify(self, found: Mapping[TopicPartition, CommittedOffset]) -> Partitions:
        """Makes the commits pending again that a late one of ours has moved back, as the group's offsets show.

        Returns their partitions.
        """
        moved = set()
        with self._lock:
            for tp, commit in found.items():
                owned = self._owned.get(tp)
                if owned is not None and owned.is_ahead_of(commit):
                    owned.committed = None
                    moved.add(tp)
        return frozenset(moved)

    def renew(self) -> None:
        """Makes committed offsets pending again, unchanged, before the group expires them. Caller: the query."""
        with self._lock:
            for owned in self._owned.values():
                owned.committed = None

    def note_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """No broker knows these partitions, and only these. Caller: the query."""
        with self._lock:
            for tp, owned in self._owned.items():
                owned.deleted = tp in partitions

    # The end of an assignment, and moves.

    def awaited(self) -> Partitions:
        """Partitions for which a revocation waits: the batch in flight reads them, or they are uncommitted."""
        with self._lock:
            return self._reading | self._uncommitted()  # "until that batch is committed"

    def uncommitted(self) -> Partitions:
        """Partitions for whose commit or start a revocation waits. Caller: anybody."""
        with self._lock:
            return self._uncommitted()

    def _uncommitted(self) -> Partitions:
        uncommitted = set()
        for tp, owned in self._owned.items():
            if owned.delays_revocation:
                uncommitted.add(tp)
        return frozenset(uncommitted)

    def remove(self, partitions: Partitions) -> tuple[Partitions, Partitions]:
        """These were revoked or lost: the query plans and commits nothing of them now. Caller: the member's thread.

        Returns those of them that the batch in flight reads, and the uncommitted ones.
        """
        with self._lock:
            awaited = partitions & self._reading, partitions & self._uncommitted()
            for tp in partitions:
                owned = self._owned.pop(tp, None)
                if owned is None or owned.start is None:
                    continue
                if tp in self._reading:
                    self._history.lost_in_batch(tp, owned)
            return awaited

    def restart_topics(self, ids: Mapping[str, str], starts: Mapping[TopicPartition, Start]) -> None:
        """These topics were recreated, with these ids: forgets all offsets in the former ones. Caller: the query.

        ``starts`` are where partitions start whose position is lost thereby. Others have started already.
        """
        with self._lock:
            self._history.restart_topics(ids)
            lineage = self._lineages.begin(time.time())
            for tp, owned in self._owned.items():
                if tp.topic not in ids or owned.is_in(ids[tp.topic]):
                    continue
                self._owned[tp] = owned.unstarted(owned.lookups)
                if owned.start is not None and tp in starts:
                    self._start(tp, starts[tp], lineage, None, ids[tp.topic])

    def forget(self, deleted: Collection[str]) -> set[str]:
        """Forgets all offsets in these topics, except in those that this query owns again. Returns the topics that it
        has forgotten. Caller: the query."""
        with self._lock:
            topics = set(deleted) - topics_of(self._owned)
            self._history.forget_topics(topics)
            return topics

    def drop_other_topics(self, ids: Mapping[str, str]) -> set[str]:
        """Positions in topics with other ids than these are looked up again. Returns the topics. Caller: the query."""
        topics = set()
        with self._lock:
            for tp, owned in self._owned.items():
                if owned.start is None or owned.may_be_in(ids.get(tp.topic, "")):
                    continue
                self._owned[tp] = owned.unstarted(lookups=0)
                topics.add(tp.topic)
        return topics

    def rewind(self, offsets: Offsets, epochs: Offsets, before: Owned) -> None:
        """Moves positions back to ``offsets``, before the commits; leaders of ``epochs`` have these. Caller: the query.

        A partition that is not where it was ``before``, because the other thread has started it since, stays there.
        """
        with self._lock:
            lineage = self._lineages.begin(time.time())
            for tp in offsets.keys() & self._owned.keys():
                owned, offset, epoch = self._owned[tp], offsets[tp], epochs[tp]
                if owned.has_moved_since(before[tp]):
                    continue
                self._owned[tp] = owned.moved_to(offset, epoch, lineage)
                self._history.ranges[tp] = OffsetRange(*tp, offset, offset, owned.topic_id, epoch, lineage)


def _committed_in(
    lineage: int, start: Start, committed: CommittedOffset | None, logged: OffsetRange | None
) -> int | None:
    """What the group has of the lineage in which a partition starts; ``None``: the start is to be committed at once."""
    if committed is None:  # "Every owned partition has a committed offset at once"
        return None
    if committed.tagged_reset and logged is not None:
        # A query that died has left the tag of a reset, perhaps with this checkpoint: by now a batch is logged.
        return None
    if not _is_in_lineage(committed, start, lineage):
        return None
    return committed.offset


def _is_in_lineage(committed: CommittedOffset, start: Start, lineage: int) -> bool:
    """Whether a commit belongs to the lineage in which its partition starts.

    The commit of another program gets our tag and lineage at once, unless the partition did not start there.
    """
    if committed.tagged:
        return committed.lineage == lineage
    return start.rule is StartRule.LOGGED


def _is_unlogged_reset(committed: CommittedOffset | None, logged: OffsetRange | None) -> bool:
    """Whether the group has the commit of a reset that no logged batch shows."""
    if committed is None or logged is not None:
        return False
    return committed.tagged_reset


def _epoch_at(start: Start, logged: OffsetRange | None, committed: CommittedOffset | None) -> int:
    """The highest epoch of a leader whose log is known to reach the start."""
    epochs = [start.epoch]
    if logged is not None and logged.end == start.offset:
        epochs.append(logged.epoch)
    if committed is not None and committed.offset == start.offset:
        epochs.append(committed.epoch)
    return max(epochs)
