"""When what failed is tried again."""

from __future__ import annotations

import threading

from spark_group_source.clock import Clock


class Retry:
    """Tries ``interval`` seconds apart, by whichever thread asks first. ``_lock`` guards when the next one is due."""

    def __init__(self, interval: float, clock: Clock) -> None:
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._at = float("-inf")

    def due(self) -> bool:
        """Whether it is time to try; who is told so has to, since nobody else is until the interval is over."""
        with self._lock:
            if self._clock() < self._at:
                return False
            self._at = self._clock() + self._interval
            return True

    def later(self, least: float = 0.0) -> None:
        """A try has just ended: the next is due after the interval, or after ``least`` seconds where that is longer."""
        with self._lock:
            self._at = self._clock() + max(self._interval, least)
