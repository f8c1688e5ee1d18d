"""The offsets that ``latest`` meant when the query started, for partitions whose leaders did not answer then.

If the query looked up the end only when the leader is back, it would skip the records that were written in the
meantime. Two lookups find an earlier offset, and the lower one applies:

1. **The end of the leader epoch at the start**, from a leader of a later epoch (KIP-320). A partition without a leader
   takes no records, so this is exactly where its log ended, and the other lookup is left out.
2. **The first record at or after the time of the start**, if the metadata named a leader: that leader may have accepted
   records that this query could not see, in the same epoch, or before a later one began. This lookup also applies if
   epochs are unknown. It compares the timestamps of the records: with ``CreateTime``, a producer whose clock is slow
   hides records from this lookup, and one whose clock is fast makes the query begin earlier.

Neither offset exceeds the current end of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_group_source.clock import Deadline
from spark_group_source.offsets import LATEST, UNKNOWN_EPOCH, Offsets, PinnedOffsets, PinnedStart, TopicPartition
from spark_group_source.query.starts.leaders import Leaders
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leader_epochs import UNCHECKED, UNDEFINED_EPOCH_OFFSET, current_epoch_end_offsets
from spark_group_source.wire.metadata import Topic, partitions_of


def starts_of(topics: Mapping[str, Topic], now: float) -> dict[TopicPartition, PinnedStart]:
    """The partitions of these topics, without their start offsets, but with the leader epoch and time that show later
    where their logs ended.

    Args:
        now: seconds since 1970.
    """
    return {tp: _start_of(topics[tp.topic], tp.partition, round(now * 1000)) for tp in partitions_of(topics.values())}


def _start_of(topic: Topic, number: int, now: int) -> PinnedStart:
    epoch = topic.epochs.get(number, UNKNOWN_EPOCH)
    return PinnedStart(topic.id, None, epoch, now, leaderless=topic.partitions[number] is None)


class EpochsAtStart(NamedTuple):
    """The answers of the leaders about the leader epochs at the start.

    Attributes:
        ends: the end offsets of epochs that have ended.
        unanswered: partitions whose leader does not say whether the epoch has ended.
    """

    ends: dict[TopicPartition, int]
    unanswered: set[TopicPartition]


class LatestAtStart:
    """One lookup of these partitions at the ``leaders``."""

    def __init__(self, leaders: Leaders, cluster: Cluster, deadline: Deadline) -> None:
        self._leaders = leaders
        self._cluster = cluster
        self._deadline = deadline

    def offsets(self, pinned: PinnedOffsets) -> dict[TopicPartition, int]:
        """Where the logs ended when the query started, for partitions whose leaders answer now. ``pinned`` has the
        partitions as of that time.

        Raises:
            TopicError: the principal may not describe a topic.
            BrokerUnavailable, DeadlineExceeded: no leader answers.
        """
        # Before the other lookups: a record that is written between them lies after this end, and is read.
        ends = self._leaders.offsets(dict.fromkeys(pinned, LATEST))
        epochs = self._epochs_at_start({tp: pinned[tp].epoch for tp in ends})
        exact = {tp for tp in epochs.ends if pinned[tp].leaderless}
        answered = ends.keys() - epochs.unanswered
        by_time = self._leaders.offsets({tp: pinned[tp].since for tp in answered - exact})
        found: dict[TopicPartition, int] = {}
        for tp in exact | by_time.keys():
            offset = ends[tp]
            if tp in epochs.ends:
                offset = min(offset, epochs.ends[tp])
            if tp in by_time and by_time[tp] >= 0:  # -1: no record has a time at or after the start
                offset = min(offset, by_time[tp])
            found[tp] = offset
        return found

    def _epochs_at_start(self, epochs: Offsets) -> EpochsAtStart:
        """Asks the leaders where these epochs end, for partitions whose epoch is known."""
        at_start = EpochsAtStart({}, set())
        known = {tp: epoch for tp, epoch in epochs.items() if epoch != UNKNOWN_EPOCH}
        if not known:
            return at_start
        answers = current_epoch_end_offsets(self._cluster, known, self._deadline)
        for tp, epoch in known.items():
            answer = answers.get(tp)
            if answer is None or answer.end_offset == UNDEFINED_EPOCH_OFFSET:
                at_start.unanswered.add(tp)
            elif answer.leader_epoch > epoch and answer.end_offset != UNCHECKED:
                at_start.ends[tp] = answer.end_offset
        return at_start
