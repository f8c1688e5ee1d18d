"""Time that tests can turn by hand: a monotonic clock and deadlines on it, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]
"""Returns monotonic seconds; only differences mean anything."""

monotonic: Clock = time.monotonic


class Waker(Protocol):
    """What ends a wait early; :class:`spark_group_source.wire.wakeup.Wakeup` is one."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when waits must end."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a clock. One is made per operation and passed down, so that waits do not add up.

    Every wait for Kafka also ends, with ``Interrupted``, once ``interrupt`` is set.
    """

    at: float
    clock: Clock = monotonic
    interrupt: Waker | None = None

    @classmethod
    def after(cls, seconds: float, clock: Clock = monotonic, interrupt: Waker | None = None) -> Deadline:
        """The moment ``seconds`` from now."""
        return cls(clock() + seconds, clock, interrupt)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self.clock())

    def expired(self) -> bool:
        """Whether the moment has come."""
        return self.clock() >= self.at

    def at_most(self, seconds: float) -> Deadline:
        """The earlier of this deadline and ``seconds`` from now."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock, self.interrupt)
