"""Truncated logs: whether a log ends before an offset, as several lookups at its leader agree."""

from __future__ import annotations

import time
from collections.abc import Collection

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import RetriableError
from spark_group_source.offsets import LATEST, Offsets, TopicPartition
from spark_group_source.query.topics import LOOKUP_TIMEOUT
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import list_offsets

TRUNCATION_LOOKUPS = 3
"""Number of lookups that must agree that a log ends before a position, because a leader that was just replaced may
still answer."""

TRUNCATION_LOOKUP_INTERVAL = 0.3
"""Seconds between two of these lookups."""

TRUNCATION_INTERVAL = 10.0
"""Seconds until a log that was not truncated is checked again: an open transaction is no data loss."""


class TruncationCheck:
    """Checks that logs reach the positions of a query, or the target of its run. Only the query's thread may call
    it."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._not_truncated_at = float("-inf")

    def ends_before(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """The ends of those logs that end before the offset, if several lookups at the leaders agree.

        Compares the ends of the logs, not the last stable offsets, which may lie before uncommitted records that others
        have read. While the leaders are unavailable, no log counts as truncated.
        """
        if self._clock() - self._not_truncated_at < TRUNCATION_INTERVAL:
            return {}
        if not offsets:
            return {}
        before = dict(offsets)
        for lookup in range(TRUNCATION_LOOKUPS):
            if lookup > 0:
                time.sleep(TRUNCATION_LOOKUP_INTERVAL)
            self._cluster.invalidate_topics(tp.topic for tp in before)
            ends = self._log_ends(before)
            before = {tp: end for tp, end in ends.items() if end < offsets[tp]}
            if not before:
                self._not_truncated_at = self._clock()
                break
        return before

    def _log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of the logs at their leaders; empty if no leader answers."""
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
