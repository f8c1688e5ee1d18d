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

A comment that begins with a number names the sentence of the contract (``DESIGN.md``) that its line keeps.

**Lineages** tell every later owner whether the group's committed offset is older or newer than what it logged itself.
``DESIGN.md`` defines them. ``NO_LINEAGE`` is older than all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from spark_group_source.clock import Clock, monotonic
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.coordinator import LATE_REQUESTS
from spark_group_source.group.membership import NO_GENERATION, Membership
from spark_group_source.offsets import BatchOffset, OffsetRange, Offsets, Partitions, TopicPartition, may_be_same
from spark_group_source.query.logged_offsets import LoggedOffsets
from spark_group_source.query.owned_partition import MAX_LOOKUPS, MAX_REJECTIONS, Owned, OwnedPartition
from spark_group_source.query.starts.pinned import PinnedStarts
from spark_group_source.query.starts.rules import Start, StartRule

UNDECIDED = -1
"""The offset of a partition whose start this query has still to decide."""


class OffsetTracker:
    """The offsets of one query, for the member's thread and the query's thread. Each method is one step under the lock,
    which no wait ever holds.

    ``_lock`` guards everything:
    - ``_owned``, the record of each partition that this query owns
    - ``_logged``, the range of each partition in the last batch that was planned with it, or in the checkpoint
    - ``_in_log``, the offset of the last batch that Spark has logged for certain: the checkpoint's or a completed one
    - ``_in_flight``, the batch in flight, and ``_reading``, what it reads, from just before it is planned
    - ``_given_up``, the lineages and beginnings of the batches in which partitions were given up
    - ``_replaced``, by partition, the commit that was there when this query began a lineage, until it has committed
    - ``_pinned``, the pinned starts of the query
    - ``_found_recreated``, topics that a lookup of start positions found to be recreated, until the query checks them
    - ``_lineage``, the highest lineage that the query has seen
    - ``_unsettled``, until when a commit without an answer may still arrive, in seconds of the clock, also after a loss
    - ``_was_assigned``, whether this query has ever owned a partition
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._logged: dict[TopicPartition, OffsetRange] = {}
        self._in_log = BatchOffset()
        self._in_flight: BatchOffset | None = None
        self._reading: Partitions = frozenset()
        self._given_up: dict[TopicPartition, tuple[int, int]] = {}
        self._replaced: dict[TopicPartition, tuple[int, CommittedOffset]] = {}
        self._pinned = PinnedStarts()
        self._found_recreated: set[str] = set()
        self._lineage = 0
        self._unsettled: dict[TopicPartition, float] = {}
        self._was_assigned = False

    def restore(self, logged: BatchOffset, pinned: PinnedStarts) -> None:
        """Begins with the checkpoint's ranges and pinned starts. Caller: the query, before the member starts."""
        with self._lock:
            self._logged |= logged.ranges
            self._in_log = logged
            self._lineage = max([self._lineage, *(read.lineage for read in logged.ranges.values())])
            self._pinned = pinned

    def pinned_starts(self) -> PinnedStarts:
        """How partitions start that no logged batch holds yet."""
        with self._lock:
            return self._pinned

    # Assigned, but without a position.

    def partitions_assigned(self, partitions: Partitions, me: Membership) -> None:
        """The query, as ``me``, owns these from now on, without a position so far. Caller: the member's thread."""
        since, ids = me.owned, me.topic_ids
        with self._lock:
            for tp in partitions:
                self._owned[tp] = OwnedPartition(since.get(tp, NO_GENERATION), str(ids.get(tp.topic, "")))
            self._pinned = self._pinned.assign(partitions)
            self._was_assigned |= bool(partitions)

    @property
    def was_assigned(self) -> bool:
        """Whether this query has ever owned a partition."""
        with self._lock:
            return self._was_assigned

    def ahead_of_commits(self, me: Membership) -> dict[TopicPartition, int]:
        """Where this query stands in partitions whose committed offset does not tell, because its own decision or work
        is not committed yet: :data:`UNDECIDED` without a start or before a reset, else the offset to be committed."""
        with self._lock:
            own = self._owned_by(me.owned)
            pending = {tp: owned.completed for tp, owned in own.items() if owned.pending}
            undecided = {tp for tp, owned in own.items() if owned.start is None or tp in self._pinned.resets}
            return pending | dict.fromkeys(undecided, UNDECIDED)

    def unresolved(self, me: Membership) -> Partitions:
        """Owned partitions without a position that no thread is looking up."""
        with self._lock:
            return frozenset(tp for tp, owned in self._owned_by(me.owned).items() if _needs_lookup(owned))

    def _owned_by(self, since: Mapping[TopicPartition, int]) -> dict[TopicPartition, OwnedPartition]:
        """The records of partitions that are owned since the same assignment as in a snapshot of the membership."""
        return {tp: owned for tp, owned in self._owned.items() if since.get(tp) == owned.since}  # 4

    @contextmanager
    def start_lookup(self, partitions: Partitions) -> Iterator[Owned]:
        """Begins a lookup of those of ``partitions`` that need one. The other thread leaves these alone."""
        with self._lock:
            # Not those lost since the caller's snapshot, which have no record, or another one.
            mine = {tp: self._owned[tp] for tp in partitions & self._owned.keys() if _needs_lookup(self._owned[tp])}
            for owned in mine.values():
                owned.in_lookup = True
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
        known = {tp: ids[tp.topic] for tp in partitions if tp.topic in ids}
        with self._lock:
            assigned = {tp: self._owned[tp].assigned_id if tp in self._owned else "" for tp in known}
            return frozenset(tp for tp, topic_id in known.items() if may_be_same(assigned[tp], topic_id))

    def logged(self, partitions: Partitions, ids: Mapping[str, str]) -> LoggedOffsets:
        """What this query has logged of partitions that start in topics with these ids.

        It notes recreated topics for :meth:`take_recreated`. Caller: the thread that began the lookup.
        """
        with self._lock:
            known_ids = {tp: start.topic_id for tp, start in self._pinned.offsets.items()}
            known_ids |= {tp: read.topic_id for tp, read in self._logged.items()}
            recreated = {tp.topic for tp, id_ in known_ids.items() if not may_be_same(id_, ids.get(tp.topic, ""))}
            self._found_recreated |= recreated
            known = {tp for tp in partitions if tp.topic not in recreated or known_ids.get(tp) == ids[tp.topic]}
            read = {tp: self._logged[tp] for tp in known & self._logged.keys()}
            given_up = {
                tp: begin for tp, (at, begin) in self._given_up.items() if tp in read and read[tp].lineage == at
            }
            replaced = {tp: seen for tp, (at, seen) in self._replaced.items() if tp in read and read[tp].lineage == at}
            pinned = self._pinned.without(partitions - known)
            return LoggedOffsets(read, given_up, replaced, partitions - known, pinned, self._in_log.checkpoint)

    def take_recreated(self) -> set[str]:
        """The topics that :meth:`logged` has found to be recreated since the last call. Caller: the query."""
        with self._lock:
            recreated, self._found_recreated = self._found_recreated, set()
            return recreated

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
            unchanged = {tp for tp, owned in lookup.items() if self._owned.get(tp) is owned}  # 6: no outdated start
            starts = {tp: start for tp, start in starts.items() if tp in unchanged}
            self._lineage = max([self._lineage, *(commit.lineage for commit in committed.values())])
            moved = any(start.lineage is None for start in starts.values())
            new_lineage = self._begin_lineage(began_at) if moved else self._lineage
            for tp, start in starts.items():
                lineage = new_lineage if start.lineage is None else start.lineage
                self._start(tp, start, lineage, committed.get(tp), ids)
            for tp in unchanged:
                lookup[tp].lookups += 1
            to_pin = StartRule.STARTING_OFFSETS, StartRule.RESET
            self._pinned = self._pinned.pin({tp: start for tp, start in starts.items() if start.rule in to_pin})
            return starts

    def _start(
        self, tp: TopicPartition, start: Start, lineage: int, committed: CommittedOffset | None, ids: Mapping[str, str]
    ) -> None:
        """An owned partition starts, which is to be committed at once if the group has it not.

        ``committed`` is the group's committed offset; ``None`` if the next commit replaces it in any case.
        """
        owned, topic_id = self._owned[tp], ids.get(tp.topic, "")
        logged = self._logged_in(tp, topic_id)
        # A query that died has left the tag of a reset, perhaps with this checkpoint: by now a batch may be logged.
        tagged_reset = committed is not None and committed.tagged_reset
        outdated_tag = tagged_reset and logged is not None
        owned.start, owned.lineage, owned.topic_id = start, lineage, topic_id
        owned.epoch = _epoch_at(start, logged, committed)
        owned.position = owned.completed = start.offset
        if start.rule is StartRule.LOGGED and (read := self._read_in_flight(tp)):
            # The checkpointed end offset is that of the batch in flight, of which nothing is completed.
            owned.completed = read.start
        owned.checkpoint = self._checkpoint_with(tp, owned)
        owned.reset = tp in self._pinned.resets or (tagged_reset and not outdated_tag)
        if committed is not None and not outdated_tag and _is_in_lineage(committed, start, lineage):
            owned.committed = committed.offset  # 5: without a commit it is pending at once
        self._given_up.pop(tp, None)
        if start.lineage is None and committed is not None:
            self._replaced[tp] = lineage, committed
        elif committed is not None:  # another commit has followed it: the same one again is a decision of its own
            self._replaced.pop(tp, None)

    def _checkpoint_with(self, tp: TopicPartition, owned: OwnedPartition) -> str:
        """The checkpoint's id if it holds what may be committed of a partition as the end of a batch; else empty."""
        read = self._in_log.ranges.get(tp)
        if read is None or not may_be_same(read.topic_id, owned.topic_id):
            return ""
        is_end = (read.end, read.lineage) == (owned.completed, owned.lineage)
        return self._in_log.checkpoint if is_end else ""

    def _logged_in(self, tp: TopicPartition, topic_id: str) -> OffsetRange | None:
        """The range that this query logged last for the partition, if that may be in the topic with this id."""
        logged = self._logged.get(tp)
        return logged if logged is not None and may_be_same(logged.topic_id, topic_id) else None

    def _begin_lineage(self, at: float) -> int:
        """A lineage that is later than all others this query has seen, also if the clocks of two machines differ."""
        self._lineage = max(round(at * 1000), self._lineage + 1)
        return self._lineage

    # Position ──▶ in flight ──▶ completed.

    def positions(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """Copies of the readable partitions that have a position. Caller: the query."""
        readable = me.readable
        with self._lock:
            return {tp: replace(owned) for tp, owned in self._owned_by(readable).items() if owned.start}

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
        read = None if self._in_flight is None else self._in_flight.ranges.get(tp)
        return read if read is not None and read.size else None

    def reserve(self, partitions: Partitions) -> None:
        """A batch that is to be planned next reads these: a revocation waits for it. Caller: the member, for the query,
        in the same step in which it checks that they are still readable."""
        with self._lock:
            self._reading = partitions

    def planned(self, batch: BatchOffset) -> None:
        """Spark gets this batch. Caller: the query.

        A partition that was lost since it was reserved gets no position from it, nor one that has started elsewhere
        since: the position would be out of date. A start that is being looked up now may be that of what the batch
        reads, and is looked up again.
        """
        with self._lock:
            self._logged |= batch.ranges
            self._pinned = self._pinned.without(batch.ranges)
            self._in_flight = batch
            for read in batch.reads():
                owned = self._owned.get(read.tp)
                if owned is not None and owned.start is None:
                    self._owned[read.tp] = owned.unstarted(owned.lookups)
                elif owned is not None and (owned.position, owned.lineage) == (read.start, read.lineage):  # 6
                    owned.position, owned.epoch = read.end, max(read.epoch, owned.epoch)  # it may have started again

    def completed(self, end: BatchOffset) -> bool:
        """Spark has completed the batch that ends at ``end``, and logged it before; returns whether it was in flight.
        Any other offset has no effect. Caller: the query.

        Nothing is committed of a partition that was lost during the batch and came back elsewhere: in another lineage,
        or as one of a recreated topic.
        """
        with self._lock:
            if self._in_flight is None or end != self._in_flight:  # 2: only completed work
                return False
            for read in end.reads():
                owned = self._owned.get(read.tp)
                if owned is not None and owned.start and owned.continues(read):  # 4: as it was planned
                    owned.complete(read.end, end.checkpoint)
            self._in_log = end
            self._in_flight, self._reading = None, frozenset()
            for tp, owned in self._owned.items():
                if owned.reset and tp in self._logged:
                    owned.reset, owned.committed = False, None  # committed again without the tag of a reset
            return True

    # Completed ──▶ committed.

    def pending(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """The pending commits of partitions that ``me`` owns: :meth:`confirmed` and others take them."""
        with self._lock:
            return {tp: owned for tp, owned in self._owned_by(me.owned).items() if owned.pending}

    def completed_work(self) -> dict[TopicPartition, OwnedPartition]:
        """The pending commits of completed batches, also of partitions that the group may have taken away by now."""
        with self._lock:
            return {tp: owned for tp, owned in self._owned.items() if owned.pending and owned.has_work}

    def confirmed(self, offsets: Offsets, sent: Owned) -> None:
        """The group has committed ``offsets``, a part of the commits that were ``sent``."""
        with self._lock:
            for tp, offset in offsets.items():
                owned = self._owned.get(tp)
                if owned is not None and owned is sent[tp]:  # 4: not of an earlier assignment
                    owned.rejections = 0
                    owned.committed = max(offset, -1 if owned.committed is None else owned.committed)
                self._replaced.pop(tp, None)
            self._pinned = replace(self._pinned, resets=self._pinned.resets - offsets.keys())

    def commits_rejected(self, rejected: Owned) -> Partitions:
        """The coordinator has rejected these commits; returns the partitions whose commits were not rejected before."""
        with self._lock:
            rejected = {tp: owned for tp, owned in rejected.items() if self._owned.get(tp) is owned}
            for owned in rejected.values():
                owned.rejections += 1
            return frozenset(tp for tp, owned in rejected.items() if owned.rejections == 1)

    def expect_late_commits(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these partitions may be applied late, after later ones: no answer to them came, or none to this
        process."""
        with self._lock:
            self._unsettled |= dict.fromkeys(partitions, self._clock() + LATE_REQUESTS)

    def unsettled(self, me: Membership) -> Partitions:
        """Partitions of ``me`` whose committed offset a late commit may still move back."""
        with self._lock:
            now = self._clock()
            return frozenset(tp for tp, until in self._unsettled.items() if now < until and tp in me.owned)

    def verify(self, found: Mapping[TopicPartition, CommittedOffset]) -> Partitions:
        """Makes the commits pending again that a late one of ours has moved back, as the group's offsets show.

        Returns their partitions.
        """
        with self._lock:
            moved = {
                tp: owned
                for tp, commit in found.items()
                if (owned := self._owned.get(tp)) is not None
                and owned.committed is not None
                and commit.tagged
                and (commit.lineage, commit.offset) < (owned.lineage, owned.committed)
            }
            for owned in moved.values():
                owned.committed = None
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
            return self._reading | self._uncommitted()  # 3: the batch and its commit

    def uncommitted(self) -> Partitions:
        """Partitions for whose commit or start a revocation waits. Without a committed start the next owner could start
        at a later offset. No revocation waits for a leader that returns no start, nor for a commit after
        :data:`MAX_REJECTIONS`: its topic may be deleted. Caller: anybody."""
        with self._lock:
            return self._uncommitted()

    def _uncommitted(self) -> Partitions:
        return frozenset(
            tp
            for tp, owned in self._owned.items()
            if (owned.pending and owned.rejections < MAX_REJECTIONS)
            or (not owned.start and owned.lookups < MAX_LOOKUPS)
        )

    def remove(self, partitions: Partitions) -> tuple[Partitions, Partitions]:
        """These were revoked or lost: the query plans and commits nothing of them now. Caller: the member's thread.

        Returns those of them that the batch in flight reads, and the uncommitted ones.
        """
        with self._lock:
            awaited = partitions & self._reading, partitions & self._uncommitted()
            for tp in partitions:
                owned = self._owned.pop(tp, None)
                if owned and owned.start and tp in self._reading:  # 6
                    self._given_up[tp] = owned.lineage, owned.completed
            return awaited

    def restart_topics(self, ids: Mapping[str, str], starts: Mapping[TopicPartition, Start]) -> None:
        """These topics were recreated, with these ids: forgets all offsets in the former ones. Caller: the query.

        ``starts`` are where partitions start whose position is lost thereby. Others have started already.
        """
        with self._lock:
            logged = self._logged.items()
            self._logged = {tp: read for tp, read in logged if read.topic_id == ids.get(tp.topic, read.topic_id)}
            self._pinned = self._pinned.without(
                tp for tp in self._pinned.offsets.keys() | self._pinned.resets if tp.topic in ids
            )
            lineage = self._begin_lineage(time.time())
            for tp, owned in self._owned.items():
                if tp.topic in ids and not (owned.start and owned.topic_id == ids[tp.topic]):
                    self._owned[tp] = owned.unstarted(owned.lookups)
                    if owned.start and tp in starts:
                        self._start(tp, starts[tp], lineage, None, ids)

    def forget(self, deleted: Collection[str]) -> set[str]:
        """Forgets all offsets in these topics, except in those that this query owns again. Returns the topics that it
        has forgotten. Caller: the query."""
        with self._lock:
            topics = set(deleted) - {tp.topic for tp in self._owned}
            for offsets in (self._logged, self._given_up, self._replaced):
                for tp in [tp for tp in offsets if tp.topic in topics]:
                    del offsets[tp]
            pinned = self._pinned.offsets.keys() | self._pinned.resets
            self._pinned = self._pinned.without(tp for tp in pinned if tp.topic in topics)
            return topics

    def drop_other_topics(self, ids: Mapping[str, str]) -> set[str]:
        """Positions in topics with other ids than these are looked up again. Returns the topics. Caller: the query."""
        with self._lock:
            topic_ids = {tp: owned.topic_id for tp, owned in self._owned.items() if owned.start}
            others = {tp for tp, topic_id in topic_ids.items() if not may_be_same(topic_id, ids.get(tp.topic, ""))}
            self._owned |= {tp: self._owned[tp].unstarted(lookups=0) for tp in others}
            return {tp.topic for tp in others}

    def rewind(self, offsets: Offsets, epochs: Offsets, before: Owned) -> None:
        """Moves positions back to ``offsets``, before the commits; leaders of ``epochs`` have these. Caller: the query.

        A partition that is not where it was ``before``, because the other thread has started it since, stays there.
        """
        with self._lock:
            lineage = self._begin_lineage(time.time())
            for tp in offsets.keys() & self._owned.keys():
                was, now, offset, epoch = before[tp], self._owned[tp], offsets[tp], epochs[tp]
                if now.start and (was.topic_id, was.position) == (now.topic_id, now.position):
                    moved = replace(now, position=offset, lineage=lineage, epoch=epoch, completed=offset)
                    self._owned[tp] = replace(moved, committed=None, checkpoint="", rejections=0, reset=False)
                    self._logged[tp] = OffsetRange(*tp, offset, offset, now.topic_id, epoch, lineage)


def _needs_lookup(owned: OwnedPartition) -> bool:
    return owned.start is None and not owned.in_lookup


def _is_in_lineage(committed: CommittedOffset, start: Start, lineage: int) -> bool:
    """Whether a commit belongs to the lineage in which its partition starts: then the start need not be committed.

    The commit of another program gets our tag and lineage at once, unless the partition did not start there.
    """
    return committed.lineage == lineage if committed.tagged else start.rule is StartRule.LOGGED


def _epoch_at(start: Start, logged: OffsetRange | None, committed: CommittedOffset | None) -> int:
    """The highest epoch of a leader whose log is known to reach the start."""
    epochs = [start.epoch]
    if logged is not None and logged.end == start.offset:
        epochs.append(logged.epoch)
    if committed is not None and committed.offset == start.offset:
        epochs.append(committed.epoch)
    return max(epochs)
