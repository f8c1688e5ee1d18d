"""The offsets of one query: its positions, the offsets that Spark has completed, and the committed offsets of its
group.

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

These transitions may follow any state: ``remove`` deletes the record of a revoked or lost partition; ``rewind`` moves
the position if records were lost; ``restart_topics`` and ``drop_other_topics`` discard the position if the topic was
recreated; ``renew`` and ``verify`` make the commit pending again.

**When may an offset be committed?** When Spark has completed the batch that ends there, or when the partition starts
there, and only in the assignment, topic and lineage in which that happened. ``pending`` returns these commits.

**Which thread commits?** The query's threads and the member's thread, through :class:`.committer.Committer`, one commit
of a query at a time. A commit that stays pending is sent again every ``offsetCommit.retryIntervalMs``, even while a
revocation waits for it.

**What happens at a revocation?** The member waits until none of the partitions is in :meth:`OffsetTracker.awaited`, at
most for the revocation timeout. Then, or at once if the assignment is lost, :meth:`OffsetTracker.remove` drops the
records. A lookup or a commit that is still in progress holds a record that no longer exists, so its answer changes
nothing. A batch that is completed later counts only if the query owns the partition again, in the same topic and
lineage, and at or after the batch's end.

"Lineages" in ``DESIGN.md`` describes how a commit, a logged range and a lineage decide the position of a partition.
Comments in quotation marks quote the contract in the same document.
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
"""Stands for the offset of a partition whose start this query has not decided yet."""


class OffsetTracker:
    """The offsets of one query, shared by the member's thread and the query's thread. Each method is one atomic step
    under the lock, except for :meth:`start_lookup`, and none waits while it holds the lock.

    ``_lock`` guards everything:
    - ``_owned``, the record of each partition that this query owns
    - ``_history``, the logged ranges and pinned starts of all partitions that the query has read, even if other members
      own them now
    - ``_lineages``, which creates the ids of new lineages
    - ``_in_flight``, the batch in flight, and ``_reading``, the partitions that it reads, set just before it is planned
    - ``_unsettled``, when an unanswered commit of a partition can no longer take effect, in seconds of the clock; kept
      even after the partition is lost
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
        """Begins with the checkpoint's ranges and pinned starts. Caller: the query's thread, before the member
        starts."""
        with self._lock:
            self._history.restore(logged, pinned)
            self._lineages.note(read.lineage for read in logged.ranges.values())

    def pinned_starts(self) -> PinnedStarts:
        """The pinned starts of partitions that no logged batch contains yet."""
        with self._lock:
            return self._history.pinned

    # Assigned, but without a position.

    def partitions_assigned(self, partitions: Partitions, me: Membership) -> None:
        """Adds a record without a position for each newly assigned partition. ``me`` is the membership that owns them.
        Caller: the member's thread."""
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
        """The offsets of this query in partitions whose committed offset is outdated, because the start or the last
        completed batch is not committed yet. The value is :data:`UNDECIDED` before the start is known or a reset is
        committed, else the offset to commit."""
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
        """The records of partitions whose assignment is the same as in a membership snapshot. ``since`` has the
        generation in which each partition of the snapshot was assigned."""
        # "Only partitions that the query owns now, under the generation in which it was planned".
        return {tp: owned for tp, owned in self._owned.items() if since.get(tp) == owned.since}

    @contextmanager
    def start_lookup(self, partitions: Partitions) -> Iterator[Owned]:
        """Begins a lookup of those ``partitions`` that need one, and yields their records. No other thread looks up the
        starts of these records until the lookup ends."""
        mine = {}
        with self._lock:
            # A partition that was lost since the caller's snapshot has no record.
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

    def note_denied(self, partitions: Partitions) -> None:
        """Notes that the principal may not read these partitions now, so no revocation waits for their starts. Caller:
        the thread that looks up starts."""
        with self._lock:
            for tp in partitions & self._owned.keys():
                self._owned[tp].lookups = max(self._owned[tp].lookups, MAX_LOOKUPS)

    def assigned_in(self, ids: Mapping[str, str], partitions: Partitions) -> Partitions:
        """Those ``partitions`` that the group assigned in the topics with these ids.

        Leaves out partitions that were assigned in a topic with another id, because another member may own them in the
        current topic. Also leaves out topics without an id in ``ids``, because they may have been recreated.
        """
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
        """The offsets that this query has logged of partitions that start in topics with these ids.

        Keeps the names of recreated topics for :meth:`take_recreated`. Caller: the thread that began the lookup.
        """
        with self._lock:
            return self._history.of_starting(partitions, ids)

    def take_recreated(self) -> set[str]:
        """The topics that :meth:`logged` has found to be recreated since the last call. Caller: the query's thread."""
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
        """Records the start positions of partitions that still have the record with which their ``lookup`` began.

        Returns the starts that were recorded. If the record has been replaced, the partition may have been lost and
        moved by its next owner, so it is looked up again. ``committed`` has the group's committed offsets, and ``ids``
        the known topic ids. ``began_at`` is when the lookup began, in seconds since 1970: later decisions of other
        members have precedence.
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
        """The lineage in which each partition starts. All partitions that are moved begin the same new lineage."""
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
        """Starts an owned partition. Its start is committed at once, unless the group has already committed that
        offset.

        ``committed`` is the group's committed offset; ``None`` if there is none, or if the start is to be committed in
        any case.
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
        """The offset up to which Spark has completed a partition that starts."""
        if start.rule is not StartRule.LOGGED:
            return start.offset
        read = self._read_in_flight(tp)
        if read is None:
            return start.offset
        # The checkpointed end offset is the end of the batch in flight, which Spark has not completed.
        return read.start

    def _pin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Pins the starts that ``startingOffsets`` or ``resetOffsetsOnStart`` decided. A partition that is lost before
        a batch logs it then starts at the same offset again."""
        to_pin = {}
        for tp, start in starts.items():
            if start.rule in (StartRule.STARTING_OFFSETS, StartRule.RESET):
                to_pin[tp] = start
        self._history.pinned = self._history.pinned.pin(to_pin)

    # Position ──▶ in flight ──▶ completed.

    def positions(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """Copies of the records of readable partitions that have a position. Caller: the query's thread."""
        positions = {}
        readable = me.readable
        with self._lock:
            for tp, owned in self._owned_by(readable).items():
                if owned.start is not None:
                    positions[tp] = owned.copy()
        return positions

    def advance_epochs(self, copies: Owned, now: Offsets) -> None:
        """Sets the epochs of positions to these later ones, whose leaders hold all records before the positions in
        ``copies``.

        A partition that the member's thread has started again since keeps its epoch. Caller: the query's thread.
        """
        with self._lock:
            for tp, epoch in now.items():
                owned, copy = self._owned.get(tp), copies[tp]
                if owned is not None and owned.epoch == copy.epoch and not owned.has_moved_since(copy):
                    owned.epoch = epoch
                copy.epoch = epoch

    @property
    def in_flight(self) -> BatchOffset | None:
        """The batch that Spark has received and not completed, as far as the source knows; ``None`` if there is
        none."""
        with self._lock:
            return self._in_flight

    def _read_in_flight(self, tp: TopicPartition) -> OffsetRange | None:
        """The range that the batch in flight reads of a partition; ``None`` if it reads no offsets of it."""
        if self._in_flight is None:
            return None
        read = self._in_flight.ranges.get(tp)
        if read is None or read.size == 0:
            return None
        return read

    def reserve(self, partitions: Partitions) -> None:
        """Notes the partitions that the next batch reads, so that a revocation waits for that batch. Caller: the member
        on the query's thread, in the same step in which it checks that the partitions are still readable."""
        with self._lock:
            self._reading = partitions

    def planned(self, batch: BatchOffset) -> None:
        """Notes that Spark gets ``batch``, and moves its partitions to the ends of their ranges. Caller: the query's
        thread.

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
        """Notes that Spark has logged and completed the batch that ends at ``end``. Returns whether that batch was in
        flight; any other offset has no effect. Caller: the query's thread.

        If a partition was lost during the batch and came back in another lineage or in a recreated topic, the end of
        its range is not committed.
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
                    owned.note_reset_logged()
            return True

    # Completed ──▶ committed.

    def pending(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """The records of partitions that ``me`` owns and whose commits are pending, to be passed to :meth:`confirmed`
        or :meth:`commits_rejected`."""
        pending = {}
        with self._lock:
            for tp, owned in self._owned_by(me.owned).items():
                if owned.pending:
                    pending[tp] = owned
        return pending

    def completed_work(self) -> dict[TopicPartition, OwnedPartition]:
        """The pending commits of completed batches, even of partitions that the group may have taken away by now."""
        work = {}
        with self._lock:
            for tp, owned in self._owned.items():
                if owned.pending and owned.has_work:
                    work[tp] = owned
        return work

    def confirmed(self, offsets: Offsets, sent: Owned) -> None:
        """Notes that the coordinator has accepted the commits of ``offsets``, which are some or all of the commits
        ``sent``."""
        with self._lock:
            for tp, offset in offsets.items():
                owned = self._owned.get(tp)
                if owned is not None and owned is sent[tp]:  # not one of an earlier assignment
                    owned.confirm(offset)
            self._history.committed(offsets.keys())

    def commits_rejected(self, rejected: Owned) -> Partitions:
        """Notes that the coordinator has rejected these commits. Returns the partitions whose previous commit was not
        rejected."""
        newly = set()
        with self._lock:
            for tp in self._unchanged(rejected):
                rejected[tp].rejections += 1
                if rejected[tp].rejections == 1:
                    newly.add(tp)
        return frozenset(newly)

    def expect_late_commits(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes that earlier commits of these partitions may still take effect after later ones, because they got no
        answer, or because another process sent them."""
        with self._lock:
            self._unsettled |= dict.fromkeys(partitions, self._clock() + LATE_REQUESTS)

    def unsettled(self, me: Membership) -> Partitions:
        """Partitions that ``me`` owns and whose committed offset a late commit may still move back."""
        unsettled = set()
        with self._lock:
            now = self._clock()
            for tp, until in self._unsettled.items():
                if now < until and tp in me.owned:
                    unsettled.add(tp)
        return frozenset(unsettled)

    def verify(self, found: Mapping[TopicPartition, CommittedOffset]) -> Partitions:
        """Compares the group's committed offsets with the confirmed ones, and returns the partitions that a late commit
        of this query has moved back. Their commits become pending again.
        """
        moved = set()
        with self._lock:
            for tp, commit in found.items():
                owned = self._owned.get(tp)
                if owned is not None and owned.is_ahead_of(commit):
                    owned.note_late_commit()
                    moved.add(tp)
        return frozenset(moved)

    def renew(self) -> None:
        """Makes committed offsets pending again, unchanged, before the brokers delete them. Caller: the query's
        thread."""
        with self._lock:
            for owned in self._owned.values():
                owned.renew()

    def note_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Marks these partitions, which no broker knows, as deleted, and all others as existing. Caller: the query's
        thread."""
        with self._lock:
            for tp, owned in self._owned.items():
                owned.deleted = tp in partitions

    # The end of an assignment, and moves.

    def awaited(self) -> Partitions:
        """Partitions for which a revocation waits: the batch in flight reads them, or they are uncommitted."""
        with self._lock:
            return self._reading | self._uncommitted()  # "until that batch is committed"

    def uncommitted(self) -> Partitions:
        """Partitions for whose commit or start a revocation waits. Caller: any thread."""
        with self._lock:
            return self._uncommitted()

    def _uncommitted(self) -> Partitions:
        uncommitted = set()
        for tp, owned in self._owned.items():
            if owned.delays_revocation:
                uncommitted.add(tp)
        return frozenset(uncommitted)

    def remove(self, partitions: Partitions) -> tuple[Partitions, Partitions]:
        """Removes the records of revoked or lost partitions, so that the query neither plans nor commits them.

        Returns those that the batch in flight reads, and those that are uncommitted. Caller: the member's thread.
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
        """Forgets all offsets in the former topics of these names, because the topics were recreated with these ids.

        ``starts`` has the new starts of the partitions that lose their positions. A partition that has already started
        in the new topic keeps its position. Caller: the query's thread.
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
        """Forgets all offsets in these deleted topics, except topics of which this query owns partitions again. Returns
        the topics that it has forgotten. Caller: the query's thread."""
        with self._lock:
            topics = set(deleted) - topics_of(self._owned)
            self._history.forget_topics(topics)
            return topics

    def drop_other_topics(self, ids: Mapping[str, str]) -> set[str]:
        """Discards positions in topics whose id is another one now, so that they are looked up again. Returns these
        topics. Caller: the query's thread."""
        topics = set()
        with self._lock:
            for tp, owned in self._owned.items():
                if owned.start is None or owned.may_be_in(ids.get(tp.topic, "")):
                    continue
                self._owned[tp] = owned.unstarted(lookups=0)
                topics.add(tp.topic)
        return topics

    def rewind(self, offsets: Offsets, epochs: Offsets, before: Owned) -> None:
        """Moves positions back to ``offsets``, even if these are below the committed offsets. Caller: the query's
        thread.

        ``epochs`` has the epochs of leaders whose logs reach the ``offsets``. A partition that is no longer where it
        was ``before``, because the member's thread has started it since, keeps its position.
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
    """The group's committed offset in the lineage in which a partition starts; ``None`` if the start is to be committed
    at once."""
    if committed is None:  # "Every owned partition has a committed offset at once"
        return None
    if committed.tagged_reset and logged is not None:
        # A query that died, perhaps with this checkpoint, left the tag of a reset. A batch is logged by now, so the
        # offset is committed again without that tag.
        return None
    if not _is_in_lineage(committed, start, lineage):
        return None
    return committed.offset


def _is_in_lineage(committed: CommittedOffset, start: Start, lineage: int) -> bool:
    """Whether a commit belongs to the lineage in which its partition starts.

    A partition that starts at a commit without this source's tag commits it again at once, with tag and lineage.
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
