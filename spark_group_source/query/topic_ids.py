"""The ids of the topics that a query reads, and whether these topics were deleted or recreated."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery
from spark_group_source.errors import UNKNOWN_TOPIC_OR_PARTITION, RetriableError
from spark_group_source.offsets import BatchOffset, may_be_same
from spark_group_source.query.topics import LOOKUP_TIMEOUT
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.stale_metadata import known_ids, topics_unknown_to_all

log = logging.getLogger(__name__)

DELETED_LOOKUPS = 3
"""Further lookups that must not find a topic before it counts as deleted."""

DELETED_INTERVAL = 0.3
"""Seconds between two of these lookups."""


class TopicIds:
    """The topic ids of the positions, compared with those that the brokers return now."""

    def __init__(self, cluster: Cluster, max_age: float, clock: Clock) -> None:
        self._cluster = cluster
        self._max_age = max_age
        self._clock = clock
        self._read: dict[str, str] = {}
        self._looked_up_at = self._unread_looked_up_at = clock()
        self._warnings = LogEvery(WARN_EVERY, clock)

    @property
    def read(self) -> Mapping[str, str]:
        """The id under which the query reads each topic, of all topics it has read."""
        return self._read

    def restore(self, logged: BatchOffset) -> None:
        """Takes the ids of the checkpoint's positions."""
        for read in logged.ranges.values():
            if read.topic_id:
                self._read[read.topic] = read.topic_id

    def ids_of(self, topics: Collection[str]) -> dict[str, str]:
        """The id under which the query reads each topic. For a new topic, it is the current id, if the brokers agree on
        it."""
        new = set(topics) - self._read.keys()
        if new:
            # A position under the id of a former topic would make the current topic look recreated.
            self._read |= ids_all_brokers_agree_on(
                known_ids(self._cluster, new, Deadline.after(LOOKUP_TIMEOUT, self._clock))
            )
        return {name: self._read[name] for name in topics if name in self._read}

    def under_other_ids(self, topics: Collection[str]) -> set[str]:
        """Those topics that any broker knows under another id than the one under which the query reads them."""
        ids = known_ids(self._cluster, topics, Deadline.after(LOOKUP_TIMEOUT, self._clock))
        return {name for name, id_ in ids if not may_be_same(self._read.get(name, ""), id_)}

    def recreated(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of those topics that exist under another id than the one under which the query reads them."""
        current = self._current_topics(topics)
        changed: set[str] = set()
        for name in current.keys() & topics:
            topic = current[name]
            if not topic.error and not may_be_same(self._read.get(name, ""), topic.id):
                changed.add(name)
        gone = self._unknown_to_all(changed, self._read)
        # Some brokers still know the other topics under their former id, so the next call asks again.
        self._cluster.invalidate_topics(changed - gone)
        return {name: current[name].id for name in gone}

    def accept_recreated(self, ids: Mapping[str, str]) -> None:
        """Notes that the query reads these topics under these ids from now on."""
        self._read |= ids

    def deleted(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics`` that were deleted: several lookups do not find them, and no broker knows them."""
        missing = _unknown(self._current_topics(topics))
        if not missing:
            return set()
        for _ in range(DELETED_LOOKUPS):
            time.sleep(DELETED_INTERVAL)
            self._cluster.invalidate_topics(missing)
            missing = _unknown(self._current_topics(missing))
        return self._unknown_to_all(missing)

    def unread_and_gone(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics``, which the query has not read, that no broker knows; one lookup per metadata age."""
        if not topics:
            return set()
        if self._clock() - self._unread_looked_up_at <= self._max_age:
            return set()
        self._unread_looked_up_at = self._clock()
        try:
            found = self._cluster.metadata(topics, Deadline.after(LOOKUP_TIMEOUT, self._clock)).topics
        except RetriableError as error:
            log.info("cannot look up topics that this query has not read, will retry: %s", error)
            return set()
        return self._unknown_to_all(_unknown(found))

    def forget(self, topics: Iterable[str]) -> None:
        """Forgets deleted topics, because no offset of the query names them any longer."""
        for name in topics:
            self._read.pop(name, None)

    def _unknown_to_all(self, topics: Iterable[str], ids: Mapping[str, str] | None = None) -> set[str]:
        return topics_unknown_to_all(self._cluster, topics, Deadline.after(LOOKUP_TIMEOUT, self._clock), ids)

    def _current_topics(self, topics: Collection[str]) -> dict[str, Topic]:
        """The metadata of these topics, requested again once per metadata age; empty if the lookup failed."""
        names = topics
        outdated = self._clock() - self._looked_up_at > self._max_age
        if outdated:
            self._looked_up_at = self._clock()
            # The lookup covers all topics that were ever read: a topic that it left out would wait for another metadata
            # age.
            names = {*topics, *self._read}
        try:
            return self._cluster.topics(names, Deadline.after(LOOKUP_TIMEOUT, self._clock), fresh=outdated)
        except RetriableError as error:
            if self._warnings.try_acquire():
                log.warning("the topic lookup failed, will retry: %s", error)
            return {}


def _unknown(topics: Mapping[str, Topic]) -> set[str]:
    return {name for name, topic in topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}


def ids_all_brokers_agree_on(known: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The topics that all brokers know under one id, with that id.

    Args:
        known: the names of topics, each with every id under which a broker knows it. The id is empty on a broker that
            does not know ids yet, as during an upgrade: the id on the others counts.
    """
    ids_by_name: dict[str, set[str]] = {}
    for name, topic_id in known:
        ids_by_name.setdefault(name, set()).add(topic_id)
    agreed: dict[str, str] = {}
    for name, ids in ids_by_name.items():
        if len(ids) > 1:
            ids.discard("")
        if len(ids) == 1:
            agreed[name] = ids.pop()
    return agreed
