"""The end offsets of the logs, cached for as long as the query can afford."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Set
from functools import partial

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import RetriableError
from spark_group_source.offsets import LATEST, Offsets, TopicPartition
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.leaderless_probe import LeaderlessProbe
from spark_group_source.query.topics import LOOKUP_TIMEOUT, raise_or_skip_deleted
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import list_offsets

log = logging.getLogger(__name__)

MIN_INTERVAL = 0.02
"""Minimum seconds between lookups, which applies while records arrive. Spark polls an idle query every 10 ms."""

MAX_INTERVAL = 0.1
"""Maximum seconds between lookups, which applies to an idle query. It adds to the delay of the next record."""

MAX_INTERVAL_PER_PARTITION = 0.0005
"""Maximum seconds between lookups, per partition, if that is longer. A lookup costs 10 µs of a core per partition, and
the brokers some time too."""

IDLE_FACTOR = 50.0
"""The interval between lookups is the time since the last new record, divided by this."""

UNKNOWN_INTERVAL = 30.0
"""Seconds until partitions that were deleted are looked up again."""

TRUNCATION_LOOKUPS = 3
"""Lookups that must agree that a log ends before a position: a leader that was just replaced may still answer."""

TRUNCATION_LOOKUP_INTERVAL = 0.3
"""Seconds between two of these lookups."""

TRUNCATION_INTERVAL = 10.0
"""Seconds until a log that turned out not to be truncated is checked again: an open transaction is no data loss."""


class EndOffsets:
    """Caches the end offset of each partition. The longer no record arrives, the rarer are the lookups.

    ``known`` are the end offsets of the last lookup, ``epochs`` the epochs of the leaders that returned them.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions, clock: Clock = monotonic) -> None:
        self.known: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._deleted: set[TopicPartition] = set()
        self._deleted_at = clock()
        self._probe = LeaderlessProbe(clock)
        self._looked_up_at = self._not_truncated_at = float("-inf")
        self._advanced_at = clock()

    @property
    def deleted(self) -> Set[TopicPartition]:
        """Partitions that no broker knew at the last lookup."""
        return self._deleted

    def of(self, positions: Offsets) -> Offsets:
        """The end offset of each partition; under read_committed the last stable offset.

        If nothing lies beyond ``positions`` the call waits until the next lookup is due, because Spark polls an idle
        source a hundred times a second. During an outage it returns the end offsets of the last lookup.
        Left out are partitions that no lookup has found, and deleted ones if ``failOnDataLoss`` is false. Partitions
        whose leader is unavailable are looked up less often than the others.

        Raises:
            DataLoss: a partition was deleted.
        """
        max_interval = max(MAX_INTERVAL, MAX_INTERVAL_PER_PARTITION * len(positions))
        interval = min(max((self._clock() - self._advanced_at) / IDLE_FACTOR, MIN_INTERVAL), max_interval)
        wait = self._looked_up_at + interval - self._clock()
        if wait > 0 and not positions.keys() - self.known.keys() - self._deleted - self._probe.partitions:
            if any(self.known.get(tp, position) > position for tp, position in positions.items()):
                return {tp: self.known[tp] for tp in positions if tp in self.known}
            time.sleep(wait)
        self._refresh(positions.keys())
        return {tp: self.known[tp] for tp in positions if tp in self.known}

    def truncated_before(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """The ends of those logs that end before the offset, if several lookups at the leaders agree.

        It compares the ends of the logs and not the last stable offsets: those may lie before records that others have
        read uncommitted. While the leaders are unavailable no log counts as truncated.
        """
        if self._clock() - self._not_truncated_at < TRUNCATION_INTERVAL:
            return {}
        ends = dict(offsets)
        for lookup in range(TRUNCATION_LOOKUPS if ends else 0):
            if lookup:
                time.sleep(TRUNCATION_LOOKUP_INTERVAL)
            self._cluster.invalidate_topics(tp.topic for tp in ends)
            ends = {tp: end for tp, end in self._log_ends(ends).items() if end < offsets[tp]}
            if not ends:
                self._not_truncated_at = self._clock()
                break
        return ends

    def _log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            return list_offsets(
                self._cluster,
                dict.fromkeys(partitions, LATEST),
                read_committed=False,
                deadline=Deadline.after(LOOKUP_TIMEOUT, self._clock),
                partial=True,
            ).offsets
        except RetriableError:
            return {}

    def forget(self, topics: Collection[str]) -> None:
        """These topics were recreated: nothing that is known of the former ones holds."""
        self.known = {tp: end for tp, end in self.known.items() if tp.topic not in topics}
        self.epochs = {tp: epoch for tp, epoch in self.epochs.items() if tp.topic not in topics}
        self._deleted = {tp for tp in self._deleted if tp.topic not in topics}
        self._probe.partitions = {tp for tp in self._probe.partitions if tp.topic not in topics}
        self._cluster.invalidate_topics(topics)
        self.expire()

    def expire(self) -> None:
        """A batch was completed: the next call looks the ends up again."""
        self._looked_up_at = float("-inf")

    def _refresh(self, partitions: Set[TopicPartition]) -> None:
        if self._clock() - self._deleted_at > UNKNOWN_INTERVAL:
            self._deleted = set()
        deleted: set[TopicPartition] = set()
        leaderless = self._probe.partitions & partitions
        others = partitions - self._deleted - leaderless
        look_up = partial(self._look_up, missing=deleted)
        try:
            current = look_up(others, LOOKUP_TIMEOUT)
        except RetriableError as error:
            log.warning("the end offsets of %d partition(s) are unknown: %s", len(others), error)
            current, others = {}, set()
        current |= self._probe.ends(leaderless, look_up)
        raise_or_skip_deleted(deleted, self._options.fetch.fail_on_data_loss)
        if deleted:
            self._deleted |= deleted
            self._deleted_at = self._clock()
        self._probe.note((others | leaderless) - current.keys() - self._deleted)
        still_known = {tp: end for tp, end in self.known.items() if tp in partitions and tp not in self._deleted}
        ends = still_known | current
        self.epochs = {tp: epoch for tp, epoch in self.epochs.items() if tp in ends}
        self._looked_up_at = self._clock()
        if ends != self.known:
            self.known, self._advanced_at = ends, self._looked_up_at

    def _look_up(
        self, partitions: Set[TopicPartition], timeout: float, missing: set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        listed = list_offsets(
            self._cluster,
            dict.fromkeys(partitions, LATEST),
            read_committed=self._options.fetch.read_committed,
            deadline=Deadline.after(timeout, self._clock),
            partial=True,
        )
        self.epochs |= listed.epochs
        missing |= listed.missing
        return listed.offsets
