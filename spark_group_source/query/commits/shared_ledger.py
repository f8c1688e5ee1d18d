"""A query's ledger of offsets and the partitions it owns, shared by the member's thread and the query's thread."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from spark_group_source.group.commits import CommittedOffset, Ledger
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import BatchOffset, Offsets, Partitions, TopicPartition
from spark_group_source.query.planning.leader_epochs import PositionEpochs
from spark_group_source.query.starting_offsets.pinned_starts import PinnedStarts


@dataclass(frozen=True, slots=True)
class StartLookup:
    """Partitions whose start position one thread is looking up, and the revocation epoch when it began."""

    partitions: Partitions
    revocation_epoch: int


class SharedLedger:
    """The position of each owned partition. Each method is one step under the lock, which no wait ever holds.

    ``epochs`` are the leader epochs of the positions, with their own lock. ``_lock`` guards everything else:
    - the ledger, and ``_owned``, the partitions that this query owns
    - ``_in_lookup``, owned partitions whose start position a thread is looking up
    - ``_recreated``, partitions of a recreated topic whose earliest offset is still unknown
    - ``_topic_ids``, the ids of the topics in which the logged ends are
    - ``_found_recreated``, topics that a lookup of start positions found to be recreated, until the query checks them
    - ``_revocation_epoch``, how many times partitions were revoked or lost, or topics recreated
    - ``_pinned``, the pinned starts of the query
    - ``_unlogged_resets``, partitions that were reset while no logged batch says so
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._owned: set[TopicPartition] = set()
        self._in_lookup: set[TopicPartition] = set()
        self._recreated: set[TopicPartition] = set()
        self._topic_ids: dict[str, str] = {}
        self._found_recreated: set[str] = set()
        self._revocation_epoch = 0
        self._pinned = PinnedStarts()
        self._unlogged_resets: set[TopicPartition] = set()
        self.epochs = PositionEpochs()

    def restore(self, logged: BatchOffset, pinned: PinnedStarts) -> None:
        """Begins with the checkpoint's ends and pinned starts. Caller: the query, before the member starts."""
        with self._lock:
            self._ledger.logged_ends.update(logged.ends())
            self._topic_ids.update({read.topic: read.topic_id for read in logged.ranges.values() if read.topic_id})
            self._pinned = pinned

    def partitions_assigned(self, partitions: Partitions) -> None:
        """The query owns these from now on, without a position so far. Caller: the member's thread."""
        with self._lock:
            self._owned |= partitions
            self._pinned = self._pinned.assign(partitions)

    def pinned_starts(self) -> PinnedStarts:
        """How partitions start that no logged batch holds yet."""
        with self._lock:
            return self._pinned

    def unlogged_resets(self) -> Partitions:
        """Partitions that were reset while no logged batch says so."""
        with self._lock:
            return frozenset(self._unlogged_resets)

    def batch_logged(self, partitions: Iterable[TopicPartition]) -> None:
        """Spark has logged a batch with these partitions: commits them again without the tag of a reset.

        Caller: the query.
        """
        with self._lock:
            logged = self._unlogged_resets.intersection(partitions)
            self._unlogged_resets -= logged
            self._ledger.commit_again(logged)

    def remove(self, partitions: Partitions) -> None:
        """These partitions were revoked or lost. Caller: the member's thread."""
        with self._lock:
            self._revocation_epoch += 1
            self._owned -= partitions
            self._recreated -= partitions
            self._unlogged_resets -= partitions
            self._ledger.remove(partitions)

    def positions(self, me: Membership) -> dict[TopicPartition, int]:
        """The next offset to plan of each readable partition. Caller: the query."""
        readable = me.readable
        with self._lock:
            return {tp: position for tp, position in self._ledger.positions.items() if tp in readable}

    def planned(self, ends: Offsets, positions: Offsets, topic_ids: Mapping[str, str]) -> None:
        """Spark gets a batch that reads up to ``ends`` and logs ``positions`` of the others. Caller: the query."""
        with self._lock:
            self._topic_ids.update(topic_ids)
            self._ledger.logged_ends.update(positions)
            self._ledger.planned(ends)
            self._pinned = self._pinned.without(positions.keys() | ends.keys())

    def completed(self, ends: Offsets) -> None:
        """Spark has completed the batch with these ends. Caller: the query."""
        with self._lock:
            self._ledger.completed(ends)

    def unresolved(self, me: Membership) -> Partitions:
        """Readable partitions without a position that no thread is looking up."""
        with self._lock:
            return frozenset((me.readable.keys() & self._owned) - self._ledger.positions.keys() - self._in_lookup)

    @contextmanager
    def start_lookup(self, partitions: Partitions) -> Iterator[StartLookup]:
        """Begins a lookup of those of ``partitions`` that need one. The other thread leaves these alone."""
        with self._lock:
            # Not those lost since the caller's snapshot: they would keep an old position when they are assigned again.
            mine = (partitions & self._owned) - self._ledger.positions.keys() - self._in_lookup
            revocation_epoch = self._revocation_epoch
            self._in_lookup |= mine
        try:
            yield StartLookup(mine, revocation_epoch)
        finally:
            with self._lock:
                self._in_lookup -= mine

    def logged_ends(self, partitions: Partitions) -> tuple[dict[TopicPartition, int | None], Partitions]:
        """The end that this query logged last for each partition, and which of them are in a recreated topic."""
        with self._lock:
            return {tp: self._ledger.logged_ends.get(tp) for tp in partitions}, partitions & self._recreated

    def recreated(self, ids: Mapping[str, str]) -> set[str]:
        """Those topics whose logged ends are in a topic with another id than in ``ids``; notes them for the query."""
        with self._lock:
            recreated = {name for name, topic_id in ids.items() if self._topic_ids.get(name, topic_id) != topic_id}
            self._found_recreated |= recreated
            return recreated

    def take_recreated(self) -> set[str]:
        """The topics that :meth:`recreated` has found since the last call. Caller: the query."""
        with self._lock:
            recreated, self._found_recreated = self._found_recreated, set()
            return recreated

    def record_starts(
        self,
        lookup: StartLookup,
        positions: Offsets,
        committed: Mapping[TopicPartition, CommittedOffset],
        starting_offsets: Offsets,
    ) -> bool:
        """Records the start positions of these partitions; returns False if partitions were revoked since the lookup.

        Then a next owner may have moved them: all are looked up again.

        Args:
            lookup: the lookup that found ``positions``.
            positions: where each partition starts.
            committed: what the group has committed of them.
            starting_offsets: what ``startingOffsets`` means for those to which it applies; pinned from now on.
        """
        with self._lock:
            if lookup.revocation_epoch != self._revocation_epoch:
                return False
            self.epochs.started(positions, committed)
            # A query that died has left this tag, perhaps with this checkpoint: by now a batch may be logged.
            tagged = {tp for tp, commit in committed.items() if commit.tagged_reset}
            outdated_tags = tagged & self._ledger.logged_ends.keys()
            for tp, position in positions.items():
                self._ledger.set_position(tp, None if tp in outdated_tags else committed.get(tp), position)
            self._recreated -= positions.keys()
            self._unlogged_resets |= (self._pinned.resets | (tagged - outdated_tags)) & positions.keys()
            self._pinned = self._pinned.pin(starting_offsets)
            return True

    def restart_topics(self, topics: Collection[str], partitions: Partitions, earliest: Offsets) -> None:
        """Restarts ``partitions`` of these recreated topics at their earliest offset, or later if that is unknown.

        Caller: the query.
        """
        with self._lock:
            self._revocation_epoch += 1  # the other thread may be finding a position in the old topic
            self._ledger.forget(topics)
            for name in topics:
                self._topic_ids.pop(name, None)
            self._pinned = self._pinned.without([tp for tp in self._pinned.offsets if tp.topic in topics])
            self.epochs.forget(topics=topics)
            mine = partitions & self._owned
            self._recreated |= mine - earliest.keys()
            for tp in mine & earliest.keys():
                self._ledger.set_position(tp, None, earliest[tp])

    def rewind(self, offsets: Offsets) -> None:
        """Moves positions back to ``offsets``, which lie before what was read and committed. Caller: the query."""
        with self._lock:
            mine = offsets.keys() & self._owned
            self._ledger.remove(mine)
            self.epochs.forget(mine)
            for tp in mine:
                self._ledger.logged_ends[tp] = offsets[tp]
                self._ledger.set_position(tp, None, offsets[tp])

    def never_committed(self, me: Membership) -> Partitions:
        """Owned partitions with a position for which the group has no committed offset at all."""
        with self._lock:
            return frozenset(self._ledger.never_committed() & me.owned.keys())

    def uncommitted(self) -> Partitions:
        """Partitions with a pending commit for which a revocation waits."""
        with self._lock:
            return frozenset(self._ledger.uncommitted())

    def pending(self, me: Membership) -> dict[TopicPartition, int]:
        """The pending commits of partitions that ``me`` owns."""
        with self._lock:
            return {tp: offset for tp, offset in self._ledger.pending().items() if tp in me.owned}

    def confirmed(self, offsets: Offsets) -> None:
        """The group has committed these."""
        with self._lock:
            self._ledger.confirmed(offsets)
            self._pinned = replace(self._pinned, resets=self._pinned.resets - offsets.keys())

    def renew(self) -> None:
        """Makes committed offsets pending again, unchanged. Caller: the query."""
        with self._lock:
            self._ledger.renew()

    def commits_rejected(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """The coordinator has rejected commits of these partitions; returns those that were not rejected before."""
        with self._lock:
            return frozenset(self._ledger.commits_rejected(partitions))

    def note_deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """No broker knows these partitions, and only these. Caller: the query."""
        with self._lock:
            self._ledger.deleted = frozenset(partitions)
