"""Which incarnation of each topic a query reads: a topic deleted and made anew has another id."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.query.planning.end_offsets import no_broker_knows
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic

log = logging.getLogger(__name__)

LOOK_TIMEOUT = 10.0
"""Seconds for one look at the topics."""

GONE_LOOKS = 3
"""Further looks that must not find a topic before it counts as deleted."""

GONE_PAUSE = 0.3
"""Seconds between two of them."""


class TopicIds:
    """The ids that positions belong to, compared with those the brokers tell now."""

    def __init__(self, cluster: Cluster, max_age: float, clock: Clock, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._max_age = max_age
        self._clock = clock
        self._read: dict[str, str] = {}
        self._looked_at = clock()

    @property
    def read(self) -> Mapping[str, str]:
        """The id that each topic is read by, of all that were read so far."""
        return self._read

    def restore(self, logged: BatchOffset) -> None:
        """The checkpoint's positions belong to the ids that stand there."""
        self._read |= {each.topic: each.topic_id for each in logged.ranges.values() if each.topic_id}

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """The id that each topic is read by; of one that is new, the id it has now. Where that is not told, none."""
        # What was told of a new one may be as old as this query: another member has read it since, perhaps made anew.
        self._cluster.invalidate_topics(set(topics) - self._read.keys())
        self._read = self._now(topics) | self._read
        return {name: self._read[name] for name in topics if name in self._read}

    def made_anew(self, topics: Collection[str]) -> set[str]:
        """Those topics that exist under another id than they were read by."""
        now = self._now(topics)
        return {name for name in topics if name in now and self._read.get(name, now[name]) != now[name]}

    def accept(self, topics: Collection[str]) -> None:
        """From here on these are read under the ids they have now."""
        self._read |= self._now(topics)

    def gone(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics`` that do not exist any more, as several looks and every broker agree."""
        missing = _unknown(self._found(topics))
        for _ in range(GONE_LOOKS if missing else 0):
            time.sleep(GONE_PAUSE)
            self._cluster.invalidate_topics(missing)
            missing = _unknown(self._found(missing))
        # The same broker may have been asked each time, and its metadata may lag for long.
        partitions = {TopicPartition(name, 0) for name in missing}
        return {tp.topic for tp in no_broker_knows(partitions, self._cluster, self._group_id)}

    def _now(self, topics: Collection[str]) -> dict[str, str]:
        """Ids of the topics that exist, as old as the cluster's metadata may be."""
        return {name: topic.id for name, topic in self._found(topics).items() if not topic.error}

    def _found(self, topics: Collection[str]) -> dict[str, Topic]:
        fresh = self._clock() - self._looked_at > self._max_age
        if fresh:
            self._looked_at = self._clock()
        # A fresh look is one at all topics that were ever read, or the others would be taken for fresh as well.
        names = {*topics, *self._read} if fresh else topics
        try:
            return self._cluster.topics(names, Deadline.after(LOOK_TIMEOUT, self._clock), fresh=fresh)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("the topic lookup failed: %s", error)
            return {}


def _unknown(topics: Mapping[str, Topic]) -> set[str]:
    return {name for name, topic in topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}
