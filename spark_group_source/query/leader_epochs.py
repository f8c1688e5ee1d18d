"""The leader epochs of a query's positions: they show whether a new leader has lost records (KIP-320).

The epoch of a position is the epoch of a leader whose log held all records before the position. If a later leader's
log ends that epoch before the position, the log has diverged: records are lost or replaced, however long it is now.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import RetriableError
from spark_group_source.fetch.leaders import UNDEFINED_EPOCH_OFFSET, EpochEndOffset, epoch_end_offsets
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition
from spark_group_source.query.offset_tracker import OwnedPartition
from spark_group_source.query.shared_tracker import SharedOffsetTracker
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT = 10.0
"""Maximum seconds for one lookup at the leaders."""

MIN_BACKOFF, BACKOFF_FACTOR = 0.3, 3.0
"""Backoff after a lookup without an answer: minimum seconds, and the multiple of the time that the lookup took."""

OLDER_EPOCH_TIMEOUT = 60.0
"""How many seconds a leader may have an older epoch than the position: a replaced leader learns of that late. After
that the cluster counts as restored from an older copy, and the epochs as invalid."""


@dataclass(frozen=True, slots=True)
class LogTruncation:
    """A log that has diverged: before a position it no longer holds the records of leader epoch ``epoch``.

    ``leader`` is the epoch of the present leader, and ``end`` the first offset that is lost or replaced. ``end`` is
    ``UNDEFINED_EPOCH_OFFSET`` if the leader is older than the position.
    """

    epoch: int
    leader: int
    end: int

    def happened(self, tp: TopicPartition, position: int) -> str:
        """The sentence for an error or a log line, without a full stop."""
        if self.end == UNDEFINED_EPOCH_OFFSET:
            return (
                f"The leader of {tp} has epoch {self.leader}, older than epoch {self.epoch} under which this query read"
                f" up to offset {position}"
            )
        return (
            f"The log of {tp} was truncated at offset {self.end}, before offset {position} where this query continues"
            f" (leader epoch {self.epoch} then, {self.leader} now)"
        )


class EpochCheck:
    """Checks that the logs of new leaders hold all records before the positions. For the query's thread.

    ``known`` has the epochs of the last positions. ``unconfirmed`` are partitions whose new leader has not answered
    yet: the query must not read them.
    """

    def __init__(self, cluster: Cluster, tracker: SharedOffsetTracker, clock: Clock) -> None:
        self.known: Offsets = {}
        self.unconfirmed: frozenset[TopicPartition] = frozenset()
        self._cluster = cluster
        self._tracker = tracker
        self._clock = clock
        self._retry_at = float("-inf")
        self._older_since: dict[TopicPartition, float] = {}

    def diverged(
        self, owned: Mapping[TopicPartition, OwnedPartition], leader_epochs: Offsets
    ) -> dict[TopicPartition, LogTruncation]:
        """Positions before which records were lost or replaced, according to the leaders with these epochs.

        There is no request while the epochs are those of the positions.
        """
        before = {tp: partition.epoch for tp, partition in owned.items()}
        current = {tp: epoch for tp, epoch in leader_epochs.items() if epoch != UNKNOWN_EPOCH}
        changed = {tp: epoch for tp, epoch in before.items() if current.get(tp, epoch) != epoch}
        to_check = {tp: epoch for tp, epoch in changed.items() if epoch != UNKNOWN_EPOCH}
        if to_check and to_check.keys() <= self.unconfirmed and self._clock() < self._retry_at:
            to_check = {}
        epoch_ends = self._look_up(to_check) if to_check else {}
        diverged: dict[TopicPartition, LogTruncation] = {}
        now = {tp: leader_epochs[tp] for tp, epoch in changed.items() if epoch == UNKNOWN_EPOCH}
        for tp, epoch_end in epoch_ends.items():
            if UNKNOWN_EPOCH < epoch_end.leader_epoch < leader_epochs[tp]:
                continue  # the brokers' metadata has not caught up with the leader
            if epoch_end.end_offset == UNDEFINED_EPOCH_OFFSET:
                if self._is_too_old(tp, epoch_end.leader_epoch, to_check[tp]):
                    diverged[tp] = LogTruncation(to_check[tp], epoch_end.leader_epoch, UNDEFINED_EPOCH_OFFSET)
            elif epoch_end.end_offset < owned[tp].position:
                diverged[tp] = LogTruncation(to_check[tp], epoch_end.leader_epoch, epoch_end.end_offset)
            else:
                now[tp] = max(epoch_end.leader_epoch, leader_epochs[tp])
        self._tracker.advance_epochs(before, now)
        self.known = before | now
        self.unconfirmed = frozenset(changed.keys() - now.keys())
        still_older = self.unconfirmed - diverged.keys()
        self._older_since = {tp: since for tp, since in self._older_since.items() if tp in still_older}
        return diverged

    def _is_too_old(self, tp: TopicPartition, leader: int, epoch: int) -> bool:
        if tp not in self._older_since:
            log.warning("%s is not read while its leader has epoch %d, older than epoch %d before", tp, leader, epoch)
        return self._clock() - self._older_since.setdefault(tp, self._clock()) > OLDER_EPOCH_TIMEOUT

    def _look_up(self, epochs: Offsets) -> dict[TopicPartition, EpochEndOffset]:
        began = self._clock()
        deadline = Deadline.after(LOOKUP_TIMEOUT, self._clock)
        try:
            topics = self._cluster.topics({tp.topic for tp in epochs}, deadline, fresh=True)
            answers = epoch_end_offsets(self._cluster, topics, epochs, deadline)
        except RetriableError:
            answers = {}
        if epochs.keys() - self.unconfirmed:
            log.info("leaders of %s changed; %d of %d answered", names(epochs), len(answers), len(epochs))
        self._retry_at = self._clock() + max(MIN_BACKOFF, BACKOFF_FACTOR * (self._clock() - began))
        return answers
