"""Lookups of the end offsets of partitions without a leader. They are rare, because the other partitions wait for each
of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set

from spark_group_source.clock import Clock
from spark_group_source.errors import RetriableError
from spark_group_source.offsets import TopicPartition
from spark_group_source.text import names
from spark_group_source.wire.offset_lookup import ListedOffsets

log = logging.getLogger(__name__)

ListEnds = Callable[[Set[TopicPartition], float], ListedOffsets]
"""Returns the end offsets of those partitions whose leaders answer within a number of seconds."""

FIRST_TIMEOUT = 1.0
"""Seconds until the first lookup, and the maximum that it takes. This maximum doubles with each further lookup, up to
:data:`MAX_TIMEOUT`."""

MAX_TIMEOUT = 10.0
"""Maximum seconds for one lookup."""

PROBE_INTERVAL = 5.0
"""Maximum seconds between two lookups, if they are quick. The first lookups follow sooner, because most elections are
short."""

BACKOFF_FACTOR = 3.0
"""Minimum time between two lookups, as a multiple of the time the last one took: the other partitions wait for it."""


class LeaderlessProbe:
    """Looks up the end offsets of partitions whose leader did not answer. Only the query's thread may call it.

    ``partitions`` are those whose leader did not answer the last lookup.
    """

    def __init__(self, clock: Clock) -> None:
        self.partitions: Set[TopicPartition] = frozenset()
        self._clock = clock
        self._timeout = FIRST_TIMEOUT
        self._next_at = float("-inf")

    def note(self, leaderless: Set[TopicPartition]) -> None:
        """Notes the partitions whose leader did not answer. Logs them if they have changed."""
        new = leaderless - self.partitions
        if leaderless and leaderless != self.partitions:
            log.warning("no leader returns the end of %s; the query continues with the others", names(leaderless))
        if new:
            self._timeout = FIRST_TIMEOUT
            self._next_at = self._clock() + FIRST_TIMEOUT
        self.partitions = leaderless

    def list_ends(self, partitions: Set[TopicPartition], list_ends: ListEnds) -> ListedOffsets:
        """The ends of those ``partitions`` whose leader answers now; none before a lookup is due."""
        if not partitions:
            return ListedOffsets()
        if self._clock() < self._next_at:
            return ListedOffsets()
        began = self._clock()
        try:
            return list_ends(partitions, self._timeout)
        except RetriableError:
            return ListedOffsets()
        finally:
            self._timeout = min(self._timeout * 2, MAX_TIMEOUT)
            now = self._clock()
            took = min(now - began, MAX_TIMEOUT)  # a process that was suspended must not wait for hours
            interval = min(self._timeout, PROBE_INTERVAL)
            self._next_at = now + max(interval, took * BACKOFF_FACTOR)
