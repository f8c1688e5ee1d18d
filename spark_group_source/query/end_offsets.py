"""The end offsets of the logs, cached for as long as the query can afford."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Set

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery, monotonic
from spark_group_source.errors import RetriableError
from spark_group_source.offsets import LATEST, Offsets, TopicPartition, without_topics
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.leaderless_probe import LeaderlessProbe
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.topics import LOOKUP_TIMEOUT, raise_or_skip_deleted
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import ListedOffsets, list_offsets

log = logging.getLogger(__name__)

MIN_INTERVAL = 0.02
"""Minimum seconds between lookups, which applies while records arrive. Spark polls an idle query every 10 ms."""

MAX_INTERVAL = 0.1
"""Maximum seconds between lookups, which applies to an idle query. It adds to the delay of the next record."""

MAX_INTERVAL_PER_PARTITION = 0.0005
"""Maximum seconds between lookups per partition, if that is longer: a lookup costs 10 µs of a core per partition, and
some time of the brokers."""

IDLE_FACTOR = 50.0
"""The interval between lookups is the time since the last new record, divided by this."""

UNKNOWN_INTERVAL = 30.0
"""Seconds until partitions that were deleted are looked up again."""


class EndOffsets:
    """Caches the end offset of each partition. The longer no record arrives, the rarer are the lookups.

    ``known`` are the end offsets of the last lookup, ``epochs`` the epochs of the leaders that returned them.
    ``_topic_ids`` are the ids of the topics of the positions for which they were looked up.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions, clock: Clock = monotonic) -> None:
        self.known: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._topic_ids: dict[TopicPartition, str] = {}
        self._deleted: set[TopicPartition] = set()
        self._deleted_at = clock()
        self._probe = LeaderlessProbe(clock)
        self._looked_up_at = float("-inf")
        self._advanced_at = clock()
        self._warnings = LogEvery(WARN_EVERY, clock)

    @property
    def deleted(self) -> Set[TopicPartition]:
        """Partitions that no broker knew at the last lookup."""
        return self._deleted

    def look_up(self, owned: Owned) -> Offsets:
        """Looks up the end offset of each partition if a lookup is due; under read_committed the last stable offset.

        If nothing lies beyond the positions the call sleeps until the next lookup is due, because Spark polls an idle
        source a hundred times a second: for at most 0.1 s, or 0.5 ms for each partition if that is longer, which is 5 s
        with 10,000 partitions. During an outage it returns the end offsets of the last lookup.
        The result leaves out partitions that no lookup has found, and deleted partitions if ``failOnDataLoss`` is
        false. Partitions whose leader is unavailable are looked up less often than the others.

        Raises:
            DataLoss: a partition was deleted.
        """
        self._forget_former_topics(owned)
        positions = {tp: partition.position for tp, partition in owned.items()}
        interval = self._interval(len(positions))
        wait = self._looked_up_at + interval - self._clock()
        if wait > 0 and self._is_known(positions):
            if self._is_behind(positions):
                return self._known_ends(positions)
            time.sleep(wait)
        self._refresh(positions.keys())
        return self._known_ends(positions)

    def _forget_former_topics(self, owned: Owned) -> None:
        """Forgets the ends in topics in which a position has another topic id than when its end was looked up.

        A topic may be recreated during a lookup. If no batch has read the former topic, nobody else notices that.
        """
        former: set[str] = set()
        for tp, partition in owned.items():
            if not partition.may_be_in(self._topic_ids.get(tp, "")):
                former.add(tp.topic)
            if partition.topic_id:
                self._topic_ids[tp] = partition.topic_id
        if former:
            self.forget(former)

    def _interval(self, partitions: int) -> float:
        """Seconds between two lookups of this number of partitions."""
        longest = max(MAX_INTERVAL, MAX_INTERVAL_PER_PARTITION * partitions)
        idle_for = self._clock() - self._advanced_at
        return min(max(idle_for / IDLE_FACTOR, MIN_INTERVAL), longest)

    def _is_known(self, positions: Offsets) -> bool:
        """Whether the last lookup covered all these partitions."""
        return not positions.keys() - self.known.keys() - self._deleted - self._probe.partitions

    def _is_behind(self, positions: Offsets) -> bool:
        """Whether offsets are known to lie beyond any of the positions."""
        return any(self.known.get(tp, position) > position for tp, position in positions.items())

    def _known_ends(self, positions: Offsets) -> dict[TopicPartition, int]:
        return {tp: self.known[tp] for tp in positions if tp in self.known}

    def forget(self, topics: Collection[str]) -> None:
        """Forgets these recreated topics, because the known ends and epochs belong to the former topics."""
        self.known = _without(topics, self.known)
        self.epochs = _without(topics, self.epochs)
        self._deleted = set(without_topics(self._deleted, topics))
        self._probe.partitions = without_topics(self._probe.partitions, topics)
        self._cluster.invalidate_topics(topics)
        self.expire()

    def expire(self) -> None:
        """Makes the next call look up the ends again, because a batch was completed."""
        self._looked_up_at = float("-inf")

    def _refresh(self, partitions: Set[TopicPartition]) -> None:
        """Looks up the end offsets of the partitions whose lookup is due."""
        if self._clock() - self._deleted_at > UNKNOWN_INTERVAL:
            self._deleted = set()
        leaderless = self._probe.partitions & partitions
        others = partitions - self._deleted - leaderless
        try:
            found = self._list_ends(others, LOOKUP_TIMEOUT)
            asked = others | leaderless
        except RetriableError as error:
            if self._warnings.try_acquire():
                log.warning("cannot look up the end offsets of %d partition(s), will retry: %s", len(others), error)
            found, asked = ListedOffsets(), leaderless
        probed = self._probe.list_ends(leaderless, self._list_ends)
        current = found.offsets | probed.offsets
        missing = found.missing | probed.missing
        self.epochs |= found.epochs | probed.epochs
        raise_or_skip_deleted(missing, self._options.fetch.fail_on_data_loss)
        if missing:
            self._deleted |= missing
            self._deleted_at = self._clock()
        self._probe.note(asked - current.keys() - self._deleted)
        self._keep(current, partitions)

    def _keep(self, current: Offsets, partitions: Set[TopicPartition]) -> None:
        """Keeps the ends that the lookup has found, and the former ends of the rest of ``partitions``."""
        ends: dict[TopicPartition, int] = {}
        for tp, end in self.known.items():
            if tp in partitions and tp not in self._deleted:
                ends[tp] = end
        ends |= current
        self.epochs = {tp: epoch for tp, epoch in self.epochs.items() if tp in ends}
        self._topic_ids = {tp: topic_id for tp, topic_id in self._topic_ids.items() if tp in ends}
        self._looked_up_at = self._clock()
        if ends != self.known:
            self.known = ends
            self._advanced_at = self._looked_up_at

    def _list_ends(self, partitions: Set[TopicPartition], timeout: float) -> ListedOffsets:
        """The ends that leaders return within this number of seconds."""
        return list_offsets(
            self._cluster,
            dict.fromkeys(partitions, LATEST),
            read_committed=self._options.fetch.read_committed,
            deadline=Deadline.after(timeout, self._clock),
            partial=True,
        )


def _without(topics: Collection[str], offsets: Offsets) -> dict[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if tp.topic not in topics}
