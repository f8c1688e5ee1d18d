"""Topic ids: a topic that was deleted and recreated has another id under the same name."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import UNKNOWN_TOPIC_OR_PARTITION, GroupSourceError
from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.query.planning.deletion import unknown_to_all
from spark_group_source.wire.cluster import Cluster, Topic

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT = 10.0
"""Maximum seconds for one lookup of the topics."""

DELETED_LOOKUPS = 3
"""Further lookups that must not find a topic before it counts as deleted."""

DELETED_INTERVAL = 0.3
"""Seconds between two of these lookups."""


class TopicIds:
    """The topic ids of the positions, compared with those that the brokers return now."""

    def __init__(self, cluster: Cluster, max_age: float, clock: Clock, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._max_age = max_age
        self._clock = clock
        self._read: dict[str, str] = {}
        self._looked_up_at = clock()

    @property
    def read(self) -> Mapping[str, str]:
        """The id under which the query reads each topic, of all topics it has read."""
        return self._read

    def restore(self, logged: BatchOffset) -> None:
        """Takes the ids of the checkpoint's positions."""
        self._read |= {read.topic: read.topic_id for read in logged.ranges.values() if read.topic_id}

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """The id under which the query reads each topic; for a new topic the id it has now, if a broker returns it."""
        # Cached metadata may be as old as this query. The topic may have been recreated since, and read by a member.
        self._cluster.invalidate_topics(set(topics) - self._read.keys())
        self._read = self._current_ids(topics) | self._read
        return {name: self._read[name] for name in topics if name in self._read}

    def recreated(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of those topics that exist under another id than the one under which the query reads them."""
        current = self._current_ids(topics)
        return {name: now for name, now in current.items() if name in topics and self._read.get(name, now) != now}

    def accept_recreated(self, ids: Mapping[str, str]) -> None:
        """From here on the query reads these topics under these ids."""
        self._read |= ids

    def deleted(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics`` that were deleted: several lookups do not find them, and no broker knows them."""
        missing = _unknown(self._look_up(topics))
        for _ in range(DELETED_LOOKUPS if missing else 0):
            time.sleep(DELETED_INTERVAL)
            self._cluster.invalidate_topics(missing)
            missing = _unknown(self._look_up(missing))
        # One broker may have answered each lookup, and its metadata may lag for long.
        partitions = {TopicPartition(name, 0) for name in missing}
        return {tp.topic for tp in unknown_to_all(partitions, self._cluster, self._group_id)}

    def _current_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of the topics that exist, as old as the cluster's metadata may be."""
        return {name: topic.id for name, topic in self._look_up(topics).items() if not topic.error}

    def _look_up(self, topics: Collection[str]) -> dict[str, Topic]:
        fresh = self._clock() - self._looked_up_at > self._max_age
        if fresh:
            self._looked_up_at = self._clock()
        # A fresh lookup covers all topics that were ever read. Otherwise the others would count as fresh as well.
        names = {*topics, *self._read} if fresh else topics
        try:
            return self._cluster.topics(names, Deadline.after(LOOKUP_TIMEOUT, self._clock), fresh=fresh)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("the topic lookup failed: %s", error)
            return {}


def _unknown(topics: Mapping[str, Topic]) -> set[str]:
    return {name for name, topic in topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}
