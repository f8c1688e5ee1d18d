"""Whether the logs of new leaders hold all records before the positions.

Leader epochs show whether a new leader has lost records (KIP-320). The epoch of a position is the epoch of a leader
whose log held all records before the position. If a later leader's log ends that epoch before the position, the log has
diverged: records are lost or replaced, however long the log is now.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import RetriableError
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.topics import LOOKUP_TIMEOUT
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leader_epochs import UNDEFINED_EPOCH_OFFSET, EpochEndOffset, current_epoch_end_offsets

log = logging.getLogger(__name__)

FIRST_TIMEOUT = 1.0
"""Maximum seconds for the first lookup after a change of leaders. It doubles with each further one, up to
:data:`.topics.LOOKUP_TIMEOUT`: a single lost response must not stop the query for long."""

MIN_BACKOFF, BACKOFF_FACTOR = 0.3, 3.0
"""Backoff after a lookup without an answer: minimum seconds, and the multiple of the time that the lookup took."""

OLDER_EPOCH_TIMEOUT = 60.0
"""How many seconds a leader may have an older epoch than the position: a replaced leader may learn late that it was
replaced. After this time, the cluster counts as restored from an older copy, and the epochs as invalid."""


@dataclass(frozen=True, slots=True)
class LogTruncation:
    """A log that has diverged: it no longer holds the records of leader epoch ``epoch`` up to a position.

    ``leader`` is the epoch of the current leader, and ``end`` the first offset that is lost or replaced. ``end`` is
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

    def resumes_at(self, position: int) -> int:
        """The offset at which a query at this position continues: the position itself if the leader is older than
        it."""
        if self.end == UNDEFINED_EPOCH_OFFSET:
            return position
        return self.end


class LeaderAnswer(Enum):
    """What the answer of a leader about the epoch of a position means for the records before the position."""

    LEADER_IS_OUTDATED = "the epoch of the leader that answered is older than the leader epoch in the metadata"
    EPOCH_IS_UNKNOWN = "the epoch of the leader that answered is older than the epoch of the position"
    RECORDS_ARE_LOST = "the epoch ends before the position"
    RECORDS_ARE_THERE = "the epoch reaches the position"


def answer_about(position: int, answer: EpochEndOffset, leader_epoch: int) -> LeaderAnswer:
    """The meaning of an answer. ``leader_epoch`` is the epoch of the leader in the metadata."""
    if UNKNOWN_EPOCH < answer.leader_epoch < leader_epoch:
        return LeaderAnswer.LEADER_IS_OUTDATED
    if answer.end_offset == UNDEFINED_EPOCH_OFFSET:
        return LeaderAnswer.EPOCH_IS_UNKNOWN
    if answer.end_offset < position:
        return LeaderAnswer.RECORDS_ARE_LOST
    return LeaderAnswer.RECORDS_ARE_THERE


class EpochCheck:
    """Checks that the logs of new leaders hold all records before the positions. Only the query's thread may call it.

    ``unconfirmed`` are partitions whose new leader has not answered yet: the query must not read them.
    """

    def __init__(self, cluster: Cluster, tracker: OffsetTracker, clock: Clock) -> None:
        self.unconfirmed: frozenset[TopicPartition] = frozenset()
        self._cluster = cluster
        self._tracker = tracker
        self._clock = clock
        self._timeout = FIRST_TIMEOUT
        self._retry_at = float("-inf")
        self._older_since: dict[TopicPartition, float] = {}

    def diverged(self, owned: Owned, leader_epochs: Offsets) -> dict[TopicPartition, LogTruncation]:
        """Positions before which records were lost or replaced, according to the leaders with these epochs.

        No request is sent while the leaders have the epochs of the positions. After a successful check, the positions
        in ``owned`` have the new epochs.
        """
        changed = _changed_epochs(owned, leader_epochs)
        to_check: dict[TopicPartition, int] = {}
        confirmed: dict[TopicPartition, int] = {}
        for tp, epoch in changed.items():
            if epoch == UNKNOWN_EPOCH:
                confirmed[tp] = leader_epochs[tp]
            else:
                to_check[tp] = epoch
        diverged: dict[TopicPartition, LogTruncation] = {}
        for tp, answer in self._answers(to_check).items():
            case = answer_about(owned[tp].position, answer, leader_epochs[tp])
            truncation = LogTruncation(to_check[tp], answer.leader_epoch, answer.end_offset)
            if case is LeaderAnswer.RECORDS_ARE_THERE:
                confirmed[tp] = max(answer.leader_epoch, leader_epochs[tp])
            elif self._has_diverged(tp, case, truncation):
                diverged[tp] = truncation
        self._tracker.advance_epochs(owned, confirmed)
        self.unconfirmed = frozenset(changed.keys() - confirmed.keys())
        for tp in self._older_since.keys() - (self.unconfirmed - diverged.keys()):
            del self._older_since[tp]
        return diverged

    def confirmed(self, offsets: Offsets) -> Offsets:
        """``offsets`` without unconfirmed partitions: their logs may have diverged long before their ends."""
        return {tp: offset for tp, offset in offsets.items() if tp not in self.unconfirmed}

    def _has_diverged(self, tp: TopicPartition, case: LeaderAnswer, truncation: LogTruncation) -> bool:
        """Whether records before the position count as lost, and not only as unconfirmed."""
        if case is LeaderAnswer.RECORDS_ARE_LOST:
            return True
        if case is LeaderAnswer.EPOCH_IS_UNKNOWN:
            return self._is_too_old(tp, truncation)
        return False

    def _is_too_old(self, tp: TopicPartition, truncation: LogTruncation) -> bool:
        """Whether the leader has been older than the position for too long."""
        if tp not in self._older_since:
            log.warning(
                "%s is not read while the epoch of its leader (%d) is older than the epoch of the query's position"
                " (%d)",
                tp,
                truncation.leader,
                truncation.epoch,
            )
        return self._clock() - self._older_since.setdefault(tp, self._clock()) > OLDER_EPOCH_TIMEOUT

    def _answers(self, epochs: Offsets) -> dict[TopicPartition, EpochEndOffset]:
        """The ends of these epochs, according to the leaders. Empty until the next lookup is due."""
        if not epochs:
            return {}
        if epochs.keys() <= self.unconfirmed and self._clock() < self._retry_at:
            return {}
        return self._look_up_ends_of(epochs)

    def _look_up_ends_of(self, epochs: Offsets) -> dict[TopicPartition, EpochEndOffset]:
        began = self._clock()
        leaders_have_changed = bool(epochs.keys() - self.unconfirmed)
        if leaders_have_changed:
            self._timeout = FIRST_TIMEOUT
        deadline = Deadline.after(self._timeout, self._clock)
        try:
            answers = current_epoch_end_offsets(self._cluster, epochs, deadline)
        except RetriableError:
            answers = {}
        if leaders_have_changed:
            log.info(
                "new leaders of %s: checked %d of %d partition(s) for log truncation",
                names(epochs),
                len(answers),
                len(epochs),
            )
        took = min(self._clock() - began, self._timeout)  # a process that was suspended must not wait for hours
        self._retry_at = self._clock() + max(MIN_BACKOFF, BACKOFF_FACTOR * took)
        self._timeout = min(self._timeout * 2, LOOKUP_TIMEOUT)
        return answers


def _changed_epochs(owned: Owned, leader_epochs: Offsets) -> dict[TopicPartition, int]:
    """The epoch of each position whose leader is known to have another epoch."""
    changed = {}
    for tp, partition in owned.items():
        if leader_epochs.get(tp, UNKNOWN_EPOCH) not in (UNKNOWN_EPOCH, partition.epoch):
            changed[tp] = partition.epoch
    return changed
