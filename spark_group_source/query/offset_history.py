"""The offsets that a query has logged of all partitions that it has read, whether or not it owns them now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import BatchOffset, OffsetRange, Offsets, Partitions, TopicPartition, may_be_same
from spark_group_source.query.owned_partition import OwnedPartition
from spark_group_source.query.starts.pinned import PinnedStarts
from spark_group_source.query.starts.rules import Start


class LoggedOffsets(NamedTuple):
    """The logged and pinned offsets of partitions that start.

    Attributes:
        ranges: the ranges that were planned last, or the offsets to which data loss has moved the query.
        given_up: for partitions that the query lost during a batch, where that batch began.
        replaced: the commits that the group had when the query began the lineage of the range, until a commit of the
            query is confirmed.
        recreated: partitions of topics that were recreated since the query logged or pinned them. The group's commits
            are in the new topics, because Kafka deletes the commits of a deleted topic.
        checkpoint: the id of the checkpoint; empty if no logged batch has one.
        pinned: the pinned starts of the other partitions at the same moment. A logged batch removes them.
    """

    ranges: dict[TopicPartition, OffsetRange]
    given_up: Offsets
    replaced: Mapping[TopicPartition, CommittedOffset]
    recreated: Partitions
    pinned: PinnedStarts
    checkpoint: str


class GivenUp(NamedTuple):
    """Where the batch began during which a partition was lost, and the lineage of that batch."""

    lineage: int
    beginning: int


class ReplacedCommit(NamedTuple):
    """The commit that the group had when the query began a lineage."""

    lineage: int
    commit: CommittedOffset


class OffsetHistory:
    """The logged and pinned offsets of all partitions that the query has read. Not thread-safe: the tracker's lock
    guards it.

    Attributes:
        ranges: the range of each partition in the last batch that was planned with it, or in the checkpoint.
        in_log: the offset of the last batch that Spark has certainly logged: the batch in the checkpoint, or a
            completed one.
        pinned: the pinned starts of the query.

    ``_given_up`` has the partitions that were lost during a batch, until they start again. ``_replaced`` has, by
    partition, the commit that the group had when this query began a lineage, until the query has committed.
    ``_found_recreated`` are topics that a lookup of start positions found to be recreated, until the query checks them.
    """

    def __init__(self) -> None:
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self.in_log = BatchOffset()
        self.pinned = PinnedStarts()
        self._given_up: dict[TopicPartition, GivenUp] = {}
        self._replaced: dict[TopicPartition, ReplacedCommit] = {}
        self._found_recreated: set[str] = set()

    def restore(self, logged: BatchOffset, pinned: PinnedStarts) -> None:
        """Begins with the checkpoint's ranges and pinned starts."""
        self.ranges |= logged.ranges
        self.in_log = logged
        self.pinned = pinned

    # Lookups when partitions start.

    def of_starting(self, partitions: Partitions, ids: Mapping[str, str]) -> LoggedOffsets:
        """The offsets that this query has logged of partitions that start in topics with these ids.

        Keeps the names of recreated topics for :meth:`take_recreated`.
        """
        recreated = self._recreated(partitions, ids)
        known = partitions - recreated
        ranges: dict[TopicPartition, OffsetRange] = {}
        given_up: dict[TopicPartition, int] = {}
        replaced: dict[TopicPartition, CommittedOffset] = {}
        for tp in known & self.ranges.keys():
            ranges[tp] = self.ranges[tp]
            lost, begun = self._given_up.get(tp), self._replaced.get(tp)
            if lost is not None and lost.lineage == ranges[tp].lineage:
                given_up[tp] = lost.beginning
            if begun is not None and begun.lineage == ranges[tp].lineage:
                replaced[tp] = begun.commit
        return LoggedOffsets(
            ranges, given_up, replaced, recreated, self.pinned.without(recreated), self.in_log.checkpoint
        )

    def _recreated(self, partitions: Partitions, ids: Mapping[str, str]) -> Partitions:
        """Those of ``partitions`` in recreated topics, except those that the query knows in the new topic already."""
        known_ids = {tp: start.topic_id for tp, start in self.pinned.offsets.items()}
        known_ids |= {tp: read.topic_id for tp, read in self.ranges.items()}
        topics = _under_other_ids(known_ids, ids)
        self._found_recreated |= topics
        recreated = set()
        for tp in partitions:
            if tp.topic in topics and known_ids.get(tp) != ids[tp.topic]:
                recreated.add(tp)
        return frozenset(recreated)

    def take_recreated(self) -> set[str]:
        """The topics that :meth:`of_starting` has found to be recreated since the last call."""
        recreated, self._found_recreated = self._found_recreated, set()
        return recreated

    def range_in(self, tp: TopicPartition, topic_id: str) -> OffsetRange | None:
        """The last range of the partition that this query logged, unless it was in a topic with another id."""
        logged = self.ranges.get(tp)
        if logged is None or not may_be_same(logged.topic_id, topic_id):
            return None
        return logged

    def checkpoint_with(self, tp: TopicPartition, owned: OwnedPartition) -> str:
        """The checkpoint's id if the offset to commit is the end of a batch in its log; else empty."""
        read = self.in_log.ranges.get(tp)
        if read is None or not may_be_same(read.topic_id, owned.topic_id):
            return ""
        if (read.end, read.lineage) != (owned.completed, owned.lineage):
            return ""
        return self.in_log.checkpoint

    # Events.

    def started(self, tp: TopicPartition, start: Start, lineage: int, committed: CommittedOffset | None) -> None:
        """Notes that a partition has started in this lineage. ``committed`` is the group's committed offset, if there
        is one."""
        self._given_up.pop(tp, None)
        if committed is None:
            return
        if start.lineage is None:
            self._replaced[tp] = ReplacedCommit(lineage, committed)
        else:  # the group has a newer commit: if the replaced one came back, that would be a new decision
            self._replaced.pop(tp, None)

    def planned(self, batch: BatchOffset) -> None:
        """Notes that Spark gets a batch, which Spark logs before running it."""
        self.ranges |= batch.ranges
        self.pinned = self.pinned.without(batch.ranges)

    def lost_in_batch(self, tp: TopicPartition, owned: OwnedPartition) -> None:
        """Notes that the query loses a partition that the batch in flight reads."""
        self._given_up[tp] = GivenUp(owned.lineage, owned.completed)

    def committed(self, partitions: Collection[TopicPartition]) -> None:
        """Notes that a commit of this query for these partitions is confirmed, which replaces former commits and
        completes resets."""
        for tp in partitions:
            self._replaced.pop(tp, None)
        self.pinned = self.pinned.without_resets(partitions)

    def restart_topics(self, ids: Mapping[str, str]) -> None:
        """Forgets all offsets in the former topics of these names, because the topics were recreated with these ids."""
        ranges = {}
        for tp, read in self.ranges.items():
            if read.topic_id == ids.get(tp.topic, read.topic_id):
                ranges[tp] = read
        self.ranges = ranges
        self.pinned = self.pinned.without_topics(ids)

    def forget_topics(self, topics: Collection[str]) -> None:
        """Forgets all offsets in these topics."""
        for offsets in (self.ranges, self._given_up, self._replaced):
            for tp in [tp for tp in offsets if tp.topic in topics]:
                del offsets[tp]
        self.pinned = self.pinned.without_topics(topics)


def _under_other_ids(known_ids: Mapping[TopicPartition, str], ids: Mapping[str, str]) -> set[str]:
    """The topics whose id in ``ids`` differs from the known id of one of their partitions."""
    topics = set()
    for tp, known_id in known_ids.items():
        if not may_be_same(known_id, ids.get(tp.topic, "")):
            topics.add(tp.topic)
    return topics
