"""The ends of the logs, as fresh as they must be and no fresher."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.fetch.positions import log_offsets
from spark_group_source.offsets import TopicPartition
from spark_group_source.options import StartAt
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)

LOOK_TIMEOUT = 10.0
"""Seconds for one look at the ends of the logs."""

FRESHEST = 0.02
"""Seconds between looks while records come in. An idle query is polled every 10 ms."""

STALEST = 0.2
"""Seconds between looks when nothing has come for long: at most this much is added to the delay of the next record."""

PATIENCE = 50.0
"""The time between looks is this fraction of the time since something last came."""


class LogEnds:
    """Caches the end of each partition, and asks less often the longer nothing comes."""

    def __init__(self, cluster: Cluster, read_committed: bool, clock: Clock = monotonic) -> None:
        self.known: dict[TopicPartition, int] = {}
        self._cluster = cluster
        self._read_committed = read_committed
        self._clock = clock
        self._looked_at = float("-inf")
        self._moved_at = clock()

    def of(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The end of each partition: the next offset to be written, under read_committed the last stable offset.

        While the brokers cannot be asked it is the end seen last, and a partition never seen is left out: a query
        outlives an outage. What cannot heal is raised.
        """
        now = self._clock()
        pause = min(max((now - self._moved_at) / PATIENCE, FRESHEST), STALEST)
        if not partitions:
            self.known = {}
        elif partitions - self.known.keys() or now - self._looked_at >= pause:
            self._look(partitions)
        return {tp: self.known[tp] for tp in partitions if tp in self.known}

    def expire(self) -> None:
        """A batch was completed: the next call looks anew."""
        self._looked_at = float("-inf")

    def _look(self, partitions: Collection[TopicPartition]) -> None:
        try:
            found = log_offsets(
                self._cluster,
                dict.fromkeys(partitions, StartAt.LATEST.value),
                read_committed=self._read_committed,
                deadline=Deadline.after(LOOK_TIMEOUT, self._clock),
            )
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("the ends of %d partition(s) are not known: %s", len(partitions), error)
            self._looked_at = self._clock()
            return
        ends = {tp: each.offset for tp, each in found.items()}
        self._looked_at = self._clock()
        if ends != self.known:
            self.known, self._moved_at = ends, self._looked_at
