"""Looks at a group that come often enough, and that do no harm while the group cannot be had."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.sample import Sample

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at least: small batches may end several times a second."""

PAUSES = (5.0, 60.0)
"""Seconds without a look after one that failed; it doubles with each, up to the second number."""


class ThrottledProbe:
    """Looks where it is time to. A look that fails is logged, and the next one comes later."""

    def __init__(self, look: GroupOffsetsProbe, clock: Clock = monotonic) -> None:
        self._look = look
        self._clock = clock
        self._next_at = float("-inf")
        self._pause = 0.0

    @property
    def group(self) -> str:
        """The group's id."""
        return self._look.group

    def sample(self, last: bool = False) -> Sample | None:
        """What a look found, or ``None``. The ``last`` one does not wait for its time, unless those before failed."""
        if self._clock() < self._next_at and (self._pause or not last):
            return None
        try:
            found = self._look.sample()
        except GroupSourceError as error:
            self._pause = min(max(self._pause * 2, PAUSES[0]), PAUSES[1])
            self._next_at = self._clock() + self._pause
            log.warning("group %s: no lag for %.0f s: %s", self.group, self._pause, error)
            return None
        self._pause = 0.0
        self._next_at = self._clock() + INTERVAL
        return found

    def close(self) -> None:
        """Closes the connections; the next look opens new ones."""
        self._look.close()
