"""The log of partitions whose start positions are still to be found."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_group_source.clock import WARN_EVERY, Clock, LogEvery
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.text import names

log = logging.getLogger(__name__)


class UnresolvedStarts:
    """Logs partitions without a start position: a warning at once, and one each minute while that lasts.

    Both threads may call it. At worst, they log the same partition twice.
    """

    def __init__(self, group_id: str, clock: Clock) -> None:
        self._group_id = group_id
        self._clock = clock
        self._warnings: dict[TopicPartition, LogEvery] = {}

    def note(self, partitions: Partitions, why: object) -> None:
        """Notes that these partitions have no start position yet, because of ``why``."""
        due = []
        for tp in sorted(partitions):
            if self._is_due(tp):
                due.append(tp)
        if due:
            log.warning("group %s: no start position for %s yet: %s", self._group_id, names(due), why)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes that these partitions have a start position now, or are no longer owned."""
        for tp in partitions:
            self._warnings.pop(tp, None)

    def _is_due(self, tp: TopicPartition) -> bool:
        return self._warnings.setdefault(tp, LogEvery(WARN_EVERY, self._clock)).try_acquire()
