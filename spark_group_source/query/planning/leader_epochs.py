"""The leader epochs of a query's positions, and what they tell when a leader changes (KIP-320).

The epoch of a position is that of a leader whose log held everything before the position. A later leader whose log
ends that epoch before the position has lost records, or has others in their place, also where its log is longer now.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.fetch.offset_for_leader_epoch import UNDEFINED_EPOCH_OFFSET, EpochEndOffset, epoch_end_offsets
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.listing import names
from spark_group_source.offsets import UNKNOWN_EPOCH, BatchOffset, OffsetRange, Offsets, TopicPartition
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT = 10.0
"""Maximum seconds for one lookup at the leaders."""

RETRY_PAUSE, RETRY_REST = 0.3, 3.0
"""Minimum seconds until a leader that did not answer is asked again, and how many times what the last lookup took."""

OLDER_PATIENCE = 60.0
"""Seconds for which a leader may have an older epoch than the position: a leader that was deposed learns of it late.
After that the cluster was restored from an older copy, and its epochs mean nothing any more."""


class PositionEpochs:
    """The leader epoch of each position. The member's thread and the query's thread share it, under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, int] = {}
        self._logged: dict[TopicPartition, OffsetRange] = {}

    def logged(self, batch: BatchOffset) -> None:
        """Spark has logged this batch. Caller: the query."""
        with self._lock:
            self._logged = dict(batch.ranges)

    def started(self, positions: Offsets, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Partitions begin at these positions: ends that were logged, offsets that the group has, or others."""
        with self._lock:
            for tp, position in positions.items():
                logged, commit = self._logged.get(tp), committed.get(tp)
                self._known[tp] = UNKNOWN_EPOCH
                if logged is not None and logged.end == position:
                    self._known[tp] = logged.epoch
                if commit is not None and commit.offset == position and self._known[tp] == UNKNOWN_EPOCH:
                    self._known[tp] = commit.epoch

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The epoch of each position; also of the offsets before it that are still to be committed."""
        with self._lock:
            return {tp: self._known.get(tp, UNKNOWN_EPOCH) for tp in partitions}

    def confirmed(self, before: Offsets, now: Offsets) -> None:
        """Later leaders have what these positions had ``before``. Caller: the query.

        A partition that the other thread has started anew since is left as it is.
        """
        with self._lock:
            self._known |= {tp: epoch for tp, epoch in now.items() if self._known.get(tp, UNKNOWN_EPOCH) == before[tp]}

    def forget(self, partitions: Collection[TopicPartition] = (), topics: Collection[str] = ()) -> None:
        """The positions of these partitions and topics are others now."""
        with self._lock:
            for book in (self._known, self._logged):
                for tp in [each for each in book if each in partitions or each.topic in topics]:
                    del book[tp]


@dataclass(frozen=True, slots=True)
class LogTruncation:
    """What lies before a position is not what it was under leader epoch ``epoch``.

    The log of the leader, which has epoch ``leader``, differs from ``end`` on. Where that is not known it is
    :data:`~spark_group_source.fetch.offset_for_leader_epoch.UNDEFINED_EPOCH_OFFSET`: the leader is older than the
    position.
    """

    epoch: int
    leader: int
    end: int

    def happened(self, tp: TopicPartition, position: int) -> str:
        """What to say of it, without a full stop."""
        if self.end == UNDEFINED_EPOCH_OFFSET:
            return (
                f"The leader of {tp} has epoch {self.leader}, older than epoch {self.epoch} under which this query read"
                f" up to offset {position}"
            )
        return (
            f"The log of {tp} was truncated at offset {self.end}, before offset {position} where this query goes on"
            f" (leader epoch {self.epoch} then, {self.leader} now)"
        )


class EpochCheck:
    """Asks new leaders whether their logs hold what the positions were read from. For the query's thread.

    ``known`` has the epochs of the positions seen last. ``unsure`` are partitions whose leaders have not told yet:
    nothing is to be read of them.
    """

    def __init__(self, cluster: Cluster, epochs: PositionEpochs, clock: Clock) -> None:
        self.known: Offsets = {}
        self.unsure: frozenset[TopicPartition] = frozenset()
        self._cluster = cluster
        self._epochs = epochs
        self._clock = clock
        self._retry_at = float("-inf")
        self._older_since: dict[TopicPartition, float] = {}

    def replaced(self, positions: Offsets, leaders: Offsets) -> dict[TopicPartition, LogTruncation]:
        """Positions before which records were lost or replaced, as the leaders of these epochs tell.

        Nobody is asked while the epochs are those of the positions.
        """
        before = self._epochs.of(positions)
        known = {tp: epoch for tp, epoch in leaders.items() if epoch != UNKNOWN_EPOCH}
        changed = {tp: epoch for tp, epoch in before.items() if known.get(tp, epoch) != epoch}
        asked = {tp: epoch for tp, epoch in changed.items() if epoch != UNKNOWN_EPOCH}
        if asked and asked.keys() <= self.unsure and self._clock() < self._retry_at:
            asked = {}
        told = self._ask(asked) if asked else {}
        found: dict[TopicPartition, LogTruncation] = {}
        now = {tp: leaders[tp] for tp, epoch in changed.items() if epoch == UNKNOWN_EPOCH}
        for tp, each in told.items():
            if UNKNOWN_EPOCH < each.leader_epoch < leaders[tp]:
                continue  # the brokers' metadata has not caught up with the leader
            if each.end_offset == UNDEFINED_EPOCH_OFFSET:
                if self._is_too_old(tp, each.leader_epoch, asked[tp]):
                    found[tp] = LogTruncation(asked[tp], each.leader_epoch, UNDEFINED_EPOCH_OFFSET)
            elif each.end_offset < positions[tp]:
                found[tp] = LogTruncation(asked[tp], each.leader_epoch, each.end_offset)
            else:
                now[tp] = max(each.leader_epoch, leaders[tp])
        self._epochs.confirmed(before, now)
        self.known = before | now
        self.unsure = frozenset(changed.keys() - now.keys())
        self._older_since = {tp: since for tp, since in self._older_since.items() if tp in self.unsure - found.keys()}
        return found

    def _is_too_old(self, tp: TopicPartition, leader: int, epoch: int) -> bool:
        if tp not in self._older_since:
            log.warning("%s is not read while its leader has epoch %d, older than epoch %d before", tp, leader, epoch)
        return self._clock() - self._older_since.setdefault(tp, self._clock()) > OLDER_PATIENCE

    def _ask(self, epochs: Offsets) -> dict[TopicPartition, EpochEndOffset]:
        began = self._clock()
        deadline = Deadline.after(LOOKUP_TIMEOUT, self._clock)
        try:
            topics = self._cluster.topics({tp.topic for tp in epochs}, deadline, fresh=True)
            told = epoch_end_offsets(self._cluster, topics, epochs, deadline)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            told = {}
        if epochs.keys() - self.unsure:
            log.info("leaders of %s changed; %d of %d told what they hold", names(epochs), len(told), len(epochs))
        took = self._clock() - began
        self._retry_at = self._clock() + max(RETRY_PAUSE, RETRY_REST * took)
        return told
