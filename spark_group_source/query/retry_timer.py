"""When the next try is due."""

from __future__ import annotations

import threading

from spark_group_source.clock import Clock


class RetryTimer:
    """Spaces tries ``interval`` seconds apart, for two threads. ``_lock`` guards when the next try is due."""

    def __init__(self, interval: float, clock: Clock) -> None:
        self._interval = interval
        self.clock = clock
        self._lock = threading.Lock()
        self._due_at = float("-inf")

    @property
    def due_at(self) -> float:
        """When the next try is due, in seconds of the clock."""
        with self._lock:
            return self._due_at

    def try_acquire(self) -> bool:
        """Returns True to one caller if a try is due. That caller must retry: no other does in this interval."""
        with self._lock:
            if self.clock() < self._due_at:
                return False
            self._due_at = self.clock() + self._interval
            return True

    def restart(self, minimum: float = 0.0) -> None:
        """Ends a try: makes the next one due after the interval, or after ``minimum`` seconds if that is longer."""
        with self._lock:
            self._due_at = self.clock() + max(self._interval, minimum)
