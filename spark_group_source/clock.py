"""Time that tests can turn by hand: a monotonic clock and deadlines on it, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
"""Returns monotonic seconds; only differences mean anything."""

monotonic: Clock = time.monotonic


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a clock. One is made per operation and passed down, so that waits do not add up."""

    at: float
    clock: Clock = monotonic

    @classmethod
    def after(cls, seconds: float, clock: Clock = monotonic) -> Deadline:
        """The moment ``seconds`` from now."""
        return cls(clock() + seconds, clock)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self.clock())

    def expired(self) -> bool:
        """Whether the moment has come."""
        return self.clock() >= self.at

    def at_most(self, seconds: float) -> Deadline:
        """The earlier of this deadline and ``seconds`` from now."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock)
