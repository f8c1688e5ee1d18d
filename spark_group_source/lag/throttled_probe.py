"""Limits how often a group is looked up, and backs off while the group is unreachable."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.sample import Sample

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Minimum time between two lookups, in seconds: small batches may end several times a second."""

BACKOFF = (5.0, 60.0)
"""Minimum and maximum time without a lookup after a failure, in seconds. It doubles with each failure."""


class ThrottledProbe:
    """Looks up a group when a lookup is due. If a lookup fails, this logs a warning and backs off."""

    def __init__(self, probe: GroupOffsetsProbe, clock: Clock = monotonic) -> None:
        self._probe = probe
        self._clock = clock
        self._next_at = float("-inf")
        self._backoff = 0.0

    @property
    def group(self) -> str:
        """The group's id."""
        return self._probe.group

    def sample(self, last: bool = False) -> Sample | None:
        """The result of a lookup; ``None`` if no lookup is due. The ``last`` one is due at once, except in backoff."""
        if self._clock() < self._next_at and (self._backoff or not last):
            return None
        try:
            sample = self._probe.sample()
        except GroupSourceError as error:
            self._backoff = min(max(self._backoff * 2, BACKOFF[0]), BACKOFF[1])
            self._next_at = self._clock() + self._backoff
            log.warning("group %s: no lag for %.0f s: %s", self.group, self._backoff, error)
            return None
        self._backoff = 0.0
        self._next_at = self._clock() + INTERVAL
        return sample

    def close(self) -> None:
        """Closes the connections; the next lookup opens new ones."""
        self._probe.close()
