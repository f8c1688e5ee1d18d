"""A query's tracker of offsets and the partitions it owns, shared by the member's thread and the query's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from spark_group_source.clock import Clock, monotonic
from spark_group_source.group.coordinator import LATE_REQUESTS
from spark_group_source.group.membership import Membership
from spark_group_source.group.offsets import CommittedOffset
from spark_group_source.offsets import BatchOffset, OffsetRange, Offsets, Partitions, PinnedOffsets, TopicPartition
from spark_group_source.query.offset_tracker import OffsetTracker, Owned, OwnedPartition, Start, StartRule, may_be_same


class RetryTimer:
    """Spaces tries ``interval`` seconds apart, for two threads. ``_lock`` guards when the next try is due."""

    def __init__(self, interval: float, clock: Clock) -> None:
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._due_at = float("-inf")

    @property
    def due_at(self) -> float:
        """When the next try is due, in seconds of the clock."""
        with self._lock:
            return self._due_at

    def try_acquire(self) -> bool:
        """Takes the try that is due, if one is. The caller that gets True must retry: no other caller does until the
        interval has passed."""
        with self._lock:
            if self._clock() < self._due_at:
                return False
            self._due_at = self._clock() + self._interval
            return True

    def restart(self, minimum: float = 0.0) -> None:
        """A try has ended: the next is due after the interval, or after ``minimum`` seconds if that is longer."""
        with self._lock:
            self._due_at = self._clock() + max(self._interval, minimum)


@dataclass(frozen=True, slots=True)
class PinnedStarts:
    """How partitions start that existed when the query first started, and that no logged batch holds yet.

    ``offsets``: where they start if they have no commit.
    ``resets``: partitions that ``resetOffsetsOnStart`` is still to move, whatever the group has committed.
    ``reset_first_assignment``: all partitions of the first assignment are to be reset.

    A partition stays here after its start, until a batch is logged or its reset is committed: it may be lost before.
    """

    offsets: PinnedOffsets = field(default_factory=dict)
    resets: Partitions = frozenset()
    reset_first_assignment: bool = False

    def pin(self, starts: Mapping[TopicPartition, Start]) -> PinnedStarts:
        """The same with these starting offsets, for partitions that are still to start."""
        found = {tp: starts[tp] for tp in starts.keys() & self.offsets.keys()}
        pinned = {tp: self.offsets[tp]._replace(offset=at.offset, epoch=at.epoch) for tp, at in found.items()}
        return replace(self, offsets={**self.offsets, **pinned})

    def without(self, partitions: Iterable[TopicPartition]) -> PinnedStarts:
        """The same without partitions that a logged batch holds."""
        logged = set(partitions)
        return replace(
            self,
            offsets={tp: offset for tp, offset in self.offsets.items() if tp not in logged},
            resets=self.resets - logged,
        )

    def assign(self, partitions: Partitions) -> PinnedStarts:
        """The same after an assignment of ``partitions``: if it is the first, ``resetOffsetsOnStart`` applies to it."""
        if not self.reset_first_assignment:
            return self
        return replace(self, resets=partitions, reset_first_assignment=False)


@dataclass(frozen=True, slots=True)
class StartLookup:
    """Partitions whose start position one thread is looking up, and the revocation epoch when it began."""

    partitions: Partitions
    revocation_epoch: int


class LoggedOffsets(NamedTuple):
    """What a query knows of partitions that start.

    Attributes:
        ranges: the ranges that it logged last.
        given_up: the committed offsets at which it gave partitions up in mid-batch.
        recreated: partitions of topics that were recreated since it logged or pinned them. The group's commits are in
            the new ones: Kafka deletes those of a deleted topic.
    """

    ranges: dict[TopicPartition, OffsetRange]
    given_up: Offsets
    recreated: Partitions


class SharedOffsetTracker:
    """The position of each owned partition. Each method is one step under the lock, which no wait ever holds.

    ``_lock`` guards everything:
    - the tracker, and ``_owned``, the partitions that this query owns, with the id of the topic if it is assigned by id
    - ``_to_look_up``, owned partitions whose start position no lookup has covered yet: a revocation waits for that
    - ``_in_lookup``, owned partitions whose start position a thread is looking up
    - ``_found_recreated``, topics that a lookup of start positions found to be recreated, until the query checks them
    - ``_revocation_epoch``, how many times partitions were revoked or lost, or topics recreated
    - ``_pinned``, the pinned starts of the query
    - ``_lineage``, the highest lineage that the query has seen
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tracker = OffsetTracker()
        self._owned: dict[TopicPartition, str] = {}
        self._to_look_up: set[TopicPartition] = set()
        self._in_lookup: set[TopicPartition] = set()
        self._found_recreated: set[str] = set()
        self._revocation_epoch = 0
        self._pinned = PinnedStarts()
        self._lineage = 0

    def restore(self, logged: BatchOffset, pinned: PinnedStarts) -> None:
        """Begins with the checkpoint's ranges and pinned starts. Caller: the query, before the member starts."""
        with self._lock:
            self._tracker.logged |= logged.ranges
            self._lineage = max([self._lineage, *(read.lineage for read in logged.ranges.values())])
            self._pinned = pinned

    def partitions_assigned(self, partitions: Partitions, ids: Mapping[str, UUID]) -> None:
        """The query owns these from now on, without a position so far, in topics with these ids, as far as the group
        assigns by id. Caller: the member's thread."""
        with self._lock:
            self._owned |= {tp: str(ids.get(tp.topic, "")) for tp in partitions}
            self._to_look_up |= partitions
            self._pinned = self._pinned.assign(partitions)

    def pinned_starts(self) -> PinnedStarts:
        """How partitions start that no logged batch holds yet."""
        with self._lock:
            return self._pinned

    def remove(self, partitions: Partitions) -> None:
        """These partitions were revoked or lost. Caller: the member's thread."""
        with self._lock:
            self._revocation_epoch += 1
            self._owned = {tp: topic_id for tp, topic_id in self._owned.items() if tp not in partitions}
            self._to_look_up -= partitions
            self._tracker.remove(partitions)

    def positions(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """Copies of the readable partitions that have a position. Caller: the query."""
        readable = me.readable
        with self._lock:
            return {tp: replace(owned) for tp, owned in self._tracker.owned.items() if tp in readable}

    def advance_epochs(self, before: Offsets, now: Offsets) -> None:
        """Later leaders hold all records before positions that had the epochs ``before``. Caller: the query.

        A partition that the other thread has started since keeps its epoch.
        """
        with self._lock:
            for tp, epoch in now.items():
                owned = self._tracker.owned.get(tp)
                if owned is not None and owned.epoch == before[tp]:
                    owned.epoch = epoch

    def planned(self, batch: BatchOffset) -> None:
        """Spark gets this batch. Caller: the query."""
        with self._lock:
            self._tracker.planned(batch)
            self._pinned = self._pinned.without(batch.ranges)

    def completed(self) -> None:
        """Spark has completed the batch in flight, and logged it before. Caller: the query."""
        with self._lock:
            self._tracker.completed()
            resets = [tp for tp, owned in self._tracker.owned.items() if owned.reset and tp in self._tracker.logged]
            for tp in resets:
                self._tracker.owned[tp].reset = False
            self._tracker.commit_again(resets)  # without the tag of a reset

    def unresolved(self, me: Membership) -> Partitions:
        """Owned partitions without a position that no thread is looking up."""
        with self._lock:
            return frozenset((me.owned.keys() & self._owned.keys()) - self._tracker.owned.keys() - self._in_lookup)

    @contextmanager
    def start_lookup(self, partitions: Partitions) -> Iterator[StartLookup]:
        """Begins a lookup of those of ``partitions`` that need one. The other thread leaves these alone."""
        with self._lock:
            # Not those lost since the caller's snapshot: they would keep an old position when they are assigned again.
            mine = frozenset(partitions & self._owned.keys()) - self._tracker.owned.keys() - self._in_lookup
            revocation_epoch = self._revocation_epoch
            self._in_lookup |= mine
        try:
            yield StartLookup(mine, revocation_epoch)
        finally:
            with self._lock:
                self._in_lookup -= mine

    def assigned_in(self, ids: Mapping[str, str], partitions: Partitions) -> Partitions:
        """``partitions`` without those in topics that are assigned by other ids, which others may own in these, and
        without those in topics that no broker returned: they may be recreated."""
        known = {tp: ids[tp.topic] for tp in partitions if tp.topic in ids}
        with self._lock:
            return frozenset(tp for tp, id_ in known.items() if may_be_same(self._owned.get(tp, ""), id_))

    def logged(self, partitions: Partitions, ids: Mapping[str, str]) -> LoggedOffsets:
        """What this query has logged of partitions that start in topics with these ids.

        It notes recreated topics for :meth:`take_recreated`. Caller: the thread that began the lookup.
        """
        with self._lock:
            logged = self._tracker.logged
            known_ids = {tp: start.topic_id for tp, start in self._pinned.offsets.items()}
            known_ids |= {tp: read.topic_id for tp, read in logged.items()}
            recreated = {tp.topic for tp, id_ in known_ids.items() if not may_be_same(id_, ids.get(tp.topic, ""))}
            self._found_recreated |= recreated
            known = {tp for tp in partitions if tp.topic not in recreated or known_ids.get(tp) == ids[tp.topic]}
            return LoggedOffsets(
                {tp: logged[tp] for tp in known & logged.keys()},
                {tp: self._tracker.given_up[tp] for tp in known & self._tracker.given_up.keys()},
                partitions - known,
            )

    def take_recreated(self) -> set[str]:
        """The topics that :meth:`logged` has found to be recreated since the last call. Caller: the query."""
        with self._lock:
            recreated, self._found_recreated = self._found_recreated, set()
            return recreated

    def record_starts(
        self,
        lookup: StartLookup,
        starts: Mapping[TopicPartition, Start],
        committed: Mapping[TopicPartition, CommittedOffset],
        ids: Mapping[str, str],
    ) -> bool:
        """Records the start positions of these partitions; returns False if partitions were revoked since the lookup.

        Then a next owner may have moved them: all are looked up again.

        Args:
            lookup: the lookup that found ``starts``.
            starts: where each partition starts.
            committed: what the group has committed of them.
            ids: the topics' ids at the lookup, as far as they are known.
        """
        with self._lock:
            if lookup.revocation_epoch != self._revocation_epoch:
                return False
            self._lineage = max([self._lineage, *(commit.lineage for commit in committed.values())])
            new_lineage = self._begin_lineage() if any(at.lineage is None for at in starts.values()) else self._lineage
            for tp, start in starts.items():
                lineage = new_lineage if start.lineage is None else start.lineage
                self._start(tp, start, lineage, committed.get(tp), ids)
            self._to_look_up -= lookup.partitions
            to_pin = StartRule.STARTING_OFFSETS, StartRule.RESET
            self._pinned = self._pinned.pin({tp: start for tp, start in starts.items() if start.rule in to_pin})
            return True

    def _start(
        self, tp: TopicPartition, start: Start, lineage: int, committed: CommittedOffset | None, ids: Mapping[str, str]
    ) -> None:
        topic_id = ids.get(tp.topic, "")
        logged = self._tracker.logged.get(tp)
        logged = logged if logged is not None and may_be_same(logged.topic_id, topic_id) else None
        # A query that died has left the tag of a reset, perhaps with this checkpoint: by now a batch may be logged.
        tagged_reset = committed is not None and committed.tagged_reset
        outdated_tag = tagged_reset and logged is not None
        owned = self._tracker.start(tp, start, lineage, None if outdated_tag else committed)
        owned.topic_id = topic_id
        owned.reset = tp in self._pinned.resets or (tagged_reset and not outdated_tag)
        if logged is not None and logged.end == start.offset:
            owned.epoch = max(owned.epoch, logged.epoch)
        if committed is not None and committed.offset == start.offset:
            owned.epoch = max(owned.epoch, committed.epoch)

    def _begin_lineage(self) -> int:
        """A lineage that is later than all others this query has seen, also if the clocks of two machines differ."""
        self._lineage = max(round(time.time() * 1000), self._lineage + 1)
        return self._lineage

    def restart_topics(self, ids: Mapping[str, str], starts: Mapping[TopicPartition, Start]) -> None:
        """These topics were recreated, with these ids: forgets all offsets in the former ones. Caller: the query.

        ``starts`` are where partitions start whose position is lost thereby.
        """
        with self._lock:
            self._revocation_epoch += 1
            former = self._tracker.forget(ids)
            self._pinned = self._pinned.without(
                tp for tp in self._pinned.offsets.keys() | self._pinned.resets if tp.topic in ids
            )
            lineage = self._begin_lineage()
            for tp in former & starts.keys():
                self._start(tp, starts[tp], lineage, None, ids)

    def drop_other_topics(self, ids: Mapping[str, str]) -> None:
        """Positions in topics with other ids than these are looked up again. Caller: the query."""
        with self._lock:
            dropped = self._tracker.in_other_topics(ids)
            for tp in dropped:
                del self._tracker.owned[tp]
            self._to_look_up |= dropped

    def rewind(self, offsets: Offsets, epochs: Offsets, before: Owned) -> None:
        """Moves positions back to ``offsets``, before the commits; leaders of ``epochs`` have these. Caller: the query.

        A partition that is not where it was ``before``, because the other thread has started it since, stays there.
        """
        with self._lock:
            lineage = self._begin_lineage()
            for tp in offsets.keys() & self._tracker.owned.keys():
                was, now = before[tp], self._tracker.owned[tp]
                if (was.topic_id, was.position) == (now.topic_id, now.position):
                    self._tracker.move(tp, offsets[tp], lineage, epochs[tp])

    def uncommitted(self) -> Partitions:
        """Partitions for which a revocation waits: with a pending commit, or without a lookup of their start, which
        may be a later offset for the next owner. It does not wait for a leader. Caller: anybody."""
        with self._lock:
            return frozenset(self._tracker.uncommitted() | (self._to_look_up - self._tracker.owned.keys()))

    def pending(self, me: Membership) -> dict[TopicPartition, OwnedPartition]:
        """The pending commits of partitions that ``me`` owns: :meth:`confirmed` and others take them."""
        with self._lock:
            return {tp: owned for tp, owned in self._tracker.pending().items() if tp in me.owned}

    def confirmed(self, offsets: Offsets, sent: Owned) -> None:
        """The group has committed ``offsets``, a part of the commits that were ``sent``."""
        with self._lock:
            self._tracker.confirmed(offsets, sent)
            self._pinned = replace(self._pinned, resets=self._pinned.resets - offsets.keys())

    def unanswered(self, sent: Owned) -> None:
        """No answer came to these commits."""
        with self._lock:
            self._tracker.unanswered(sent, self._clock() + LATE_REQUESTS)

    def unsettled(self, me: Membership) -> Partitions:
        """Partitions of ``me`` whose committed offset a late commit may still move back."""
        with self._lock:
            return frozenset(self._tracker.unsettled(self._clock()) & me.owned.keys())

    def verify(self, found: Mapping[TopicPartition, CommittedOffset]) -> Partitions:
        """Makes the commits pending again that a late one has moved back, as the group's offsets show.

        Returns their partitions.
        """
        with self._lock:
            return frozenset(self._tracker.verify(found))

    def renew(self) -> None:
        """Makes committed offsets pending again, unchanged. Caller: the query."""
        with self._lock:
            self._tracker.commit_again(list(self._tracker.owned))

    def commits_rejected(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """The coordinator has rejected commits of these partitions; returns those that were not rejected before."""
        with self._lock:
            return frozenset(self._tracker.commits_rejected(partitions))

    def note_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """No broker knows these partitions, and only these. Caller: the query."""
        with self._lock:
            self._tracker.deleted = frozenset(partitions)
