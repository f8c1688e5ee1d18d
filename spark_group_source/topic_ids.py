"""Which incarnation of each topic a query reads: a topic deleted and made anew has another id."""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import BatchOffset
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)

LOOK_TIMEOUT = 10.0
"""Seconds for one look at the topics."""


class TopicIds:
    """The ids that positions belong to, compared with those the brokers tell now."""

    def __init__(self, cluster: Cluster, max_age: float, clock: Clock) -> None:
        self._cluster = cluster
        self._max_age = max_age
        self._clock = clock
        self._read: dict[str, str] = {}
        self._looked_at = clock()

    def restore(self, logged: BatchOffset) -> None:
        """The checkpoint's positions belong to the ids that stand there."""
        self._read |= {each.topic: each.topic_id for each in logged.ranges.values() if each.topic_id}

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """The id that each topic is read by; of one that is new, the id it has now. Where that is not told, none."""
        self._read = self._now(topics) | self._read
        return {name: self._read[name] for name in topics if name in self._read}

    def made_anew(self, topics: Collection[str]) -> set[str]:
        """Those topics that exist under another id than they were read by."""
        now = self._now(topics)
        return {name for name in topics if name in now and self._read.get(name, now[name]) != now[name]}

    def accept(self, topics: Collection[str]) -> None:
        """From here on these are read under the ids they have now."""
        self._read |= self._now(topics)

    def _now(self, topics: Collection[str]) -> dict[str, str]:
        """Ids of the topics that exist, as old as the cluster's metadata may be."""
        fresh = self._clock() - self._looked_at > self._max_age
        if fresh:
            self._looked_at = self._clock()
        try:
            found = self._cluster.topics(topics, Deadline.after(LOOK_TIMEOUT, self._clock), fresh=fresh)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("the topics could not be looked at: %s", error)
            return {}
        return {name: topic.id for name, topic in found.items() if not topic.error}
