"""A query's ledger of offsets, and which partitions it owns: what the member's thread and the query's thread share."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from spark_group_source.group.commits import CommittedOffset, Ledger
from spark_group_source.group.state import Membership
from spark_group_source.offsets import Offsets, Partitions, TopicPartition
from spark_group_source.query.planning.leader_epochs import PositionEpochs


@dataclass(frozen=True, slots=True)
class Claim:
    """Partitions whose start one thread looks for; ``takings`` is how often some had been taken away until then."""

    partitions: Partitions
    takings: int


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What is still to be done of a query's first start, by this process or a later one with the same checkpoint.

    ``offsets`` are partitions that existed then and stand in no batch since: where they have no commit,
    ``startingOffsets`` apply, which were the given offset then, or are still to be looked up (``None``). ``resets`` are
    those that are moved whatever the group has committed. ``resets_first_share``: all that come first. What has started
    stays here until a batch or a commit says so: it may be taken away before.
    """

    offsets: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    resets: Partitions = frozenset()
    resets_first_share: bool = False

    def decided(self, starts: Offsets) -> FirstStart:
        """The same once it is known that ``startingOffsets`` mean these."""
        return replace(self, offsets={tp: starts.get(tp, at) for tp, at in self.offsets.items()})

    def without(self, partitions: Iterable[TopicPartition]) -> FirstStart:
        """The same once a batch says where these stand."""
        done = set(partitions)
        return replace(
            self, offsets={tp: at for tp, at in self.offsets.items() if tp not in done}, resets=self.resets - done
        )


class SharedLedger:
    """Where each partition stands. Each method is one step, under a lock that is held for no longer than that takes.

    ``epochs`` are the leader epochs of the positions, with a lock of their own.
    ``_lock`` guards everything else: the ledger; ``_owned``, the partitions that the group has given to this query;
    ``_claimed``, those of them whose start a thread is looking for; ``_anew``, those in a topic made anew whose
    beginning is not known yet; ``_takings``, how often partitions were taken away; ``_first``, what is still to be done
    of the query's first start; and ``_unlogged``, partitions that were reset, where no batch is logged that says so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._owned: set[TopicPartition] = set()
        self._claimed: set[TopicPartition] = set()
        self._anew: set[TopicPartition] = set()
        self._takings = 0
        self._first = FirstStart()
        self._unlogged: set[TopicPartition] = set()
        self.epochs = PositionEpochs()

    def restore(self, logged: Offsets, first: FirstStart | None = None) -> None:
        """Begins with the ends that the checkpoint has. Caller: the query, before the member starts."""
        with self._lock:
            self._ledger.logged_ends.update(logged)
            self._first = first or FirstStart()

    def partitions_assigned(self, partitions: Partitions) -> None:
        """These are owned from now on; where they start is to be found. Caller: the member's thread."""
        with self._lock:
            self._owned |= partitions
            if self._first.resets_first_share:
                self._first = replace(self._first, resets=partitions, resets_first_share=False)

    def first_start(self) -> FirstStart:
        """What is still to be done of the query's first start."""
        with self._lock:
            return self._first

    def unlogged(self) -> Partitions:
        """Partitions that were reset, where no batch is logged that says so."""
        with self._lock:
            return frozenset(self._unlogged)

    def batch_logged(self, partitions: Iterable[TopicPartition]) -> None:
        """Spark has logged a batch with these partitions: their commits need not say any more that they start.

        Caller: the query.
        """
        with self._lock:
            known = self._unlogged.intersection(partitions)
            self._unlogged -= known
            self._ledger.commit_again(known)

    def dropped(self, partitions: Partitions) -> None:
        """These are owned no more. Caller: the member's thread."""
        with self._lock:
            self._takings += 1
            self._owned -= partitions
            self._anew -= partitions
            self._unlogged -= partitions
            self._ledger.remove(partitions)

    def positions(self, me: Membership) -> dict[TopicPartition, int]:
        """Next offset to plan of each partition that may be read. Caller: the query."""
        readable = me.readable
        with self._lock:
            return {tp: at for tp, at in self._ledger.positions.items() if tp in readable}

    def planned(self, ends: Offsets, standing: Offsets) -> None:
        """Spark is given a batch up to these ends, which says of the others where they stand. Caller: the query."""
        with self._lock:
            self._ledger.logged_ends.update(standing)
            self._ledger.planned(ends)
            self._first = self._first.without(standing.keys() | ends.keys())

    def completed(self, ends: Offsets) -> None:
        """Spark has completed the batch with these ends. Caller: the query."""
        with self._lock:
            self._ledger.completed(ends)

    def unresolved(self, me: Membership) -> Partitions:
        """Partitions owned whose start could not be found yet, and that no thread is looking for."""
        with self._lock:
            return frozenset((me.readable.keys() & self._owned) - self._ledger.positions.keys() - self._claimed)

    @contextmanager
    def claimed(self, partitions: Partitions) -> Iterator[Claim]:
        """Those of ``partitions`` whose start is still to be found; nobody else looks for it meanwhile."""
        with self._lock:
            # What was taken away since the caller's snapshot would keep a position that is old when it comes back.
            mine = (partitions & self._owned) - self._ledger.positions.keys() - self._claimed
            takings = self._takings
            self._claimed |= mine
        try:
            yield Claim(mine, takings)
        finally:
            with self._lock:
                self._claimed -= mine

    def logged(self, partitions: Partitions) -> tuple[dict[TopicPartition, int | None], Partitions]:
        """The end that this query logged for each partition last, and those of them in a topic made anew."""
        with self._lock:
            return {tp: self._ledger.logged_ends.get(tp) for tp in partitions}, partitions & self._anew

    def started(
        self, claim: Claim, starts: Offsets, committed: Mapping[TopicPartition, CommittedOffset], decided: Offsets
    ) -> bool:
        """These partitions start there, where the group has ``committed`` so far; whether they do.

        Not so where some were taken away since the claim, and perhaps moved by their next owner: all are looked for
        again. ``decided`` is what ``startingOffsets`` mean where they apply.
        """
        with self._lock:
            if claim.takings != self._takings:
                return False
            self.epochs.started(starts, committed)
            # A query that died has left this mark, perhaps with this checkpoint: then a batch may be logged by now.
            marked = {tp for tp, each in committed.items() if each.tagged_reset}
            good = marked & self._ledger.logged_ends.keys()
            for tp, start in starts.items():
                self._ledger.set_position(tp, None if tp in good else committed.get(tp), start)
            self._anew -= starts.keys()
            self._unlogged |= (self._first.resets | (marked - good)) & starts.keys()
            self._first = self._first.decided(decided)
            return True

    def start_over(self, topics: Collection[str], partitions: Partitions, starts: Offsets) -> None:
        """These topics are others now: ``partitions`` of them start at ``starts``, or where that is told later.

        Caller: the query.
        """
        with self._lock:
            self._takings += 1  # what the other thread is about to find is a position in the old topic
            self._ledger.forget(topics)
            self._first = self._first.without([tp for tp in self._first.offsets if tp.topic in topics])
            self.epochs.forget(topics=topics)
            mine = partitions & self._owned
            self._anew |= mine - starts.keys()
            for tp in mine & starts.keys():
                self._ledger.set_position(tp, None, starts[tp])

    def go_back(self, ends: Offsets) -> None:
        """Partitions go on at these offsets, which lie before what was read and committed. Caller: the query."""
        with self._lock:
            mine = ends.keys() & self._owned
            self._ledger.remove(mine)
            self.epochs.forget(mine)
            for tp in mine:
                self._ledger.logged_ends[tp] = ends[tp]
                self._ledger.set_position(tp, None, ends[tp])

    def unstarted(self, me: Membership) -> Partitions:
        """Partitions owned that have a position, and of which the group has no commit at all."""
        with self._lock:
            return frozenset(self._ledger.never_committed() & me.owned.keys())

    def uncommitted(self) -> Partitions:
        """Partitions with completed work that the group has not been told of."""
        with self._lock:
            return frozenset(self._ledger.pending())

    def pending(self, me: Membership) -> dict[TopicPartition, int]:
        """What is completed and not committed of what ``me`` owns."""
        with self._lock:
            return {tp: offset for tp, offset in self._ledger.pending().items() if tp in me.owned}

    def confirmed(self, offsets: Offsets) -> None:
        """The group has these now."""
        with self._lock:
            self._ledger.confirmed(offsets)
            self._first = replace(self._first, resets=self._first.resets - offsets.keys())

    def renew(self) -> None:
        """What the group has is to be committed once more. Caller: the query."""
        with self._lock:
            self._ledger.renew()

    def uncommittable(self, partitions: Iterable[TopicPartition]) -> None:
        """The group refuses these for what they are."""
        with self._lock:
            self._ledger.uncommittable(partitions)
