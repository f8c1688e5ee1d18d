"""A monotonic clock that tests can replace, and deadlines on it, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]
"""Returns monotonic seconds; only differences are meaningful."""

BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux only: the clock that goes on while the machine is suspended, as the sessions at the coordinators do."""


def monotonic() -> float:
    """Monotonic seconds, with the time that the machine was suspended where the system tells it."""
    return time.monotonic() if BOOT_TIME is None else time.clock_gettime(BOOT_TIME)


class Wakeup(Protocol):
    """Ends a wait early; :class:`spark_group_source.wire.wakeup.WakeupPipe` implements it."""

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when waits must end."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which an operation times out. The operation passes it down, so that its waits do not add up.

    Setting ``wakeup`` also ends every wait for Kafka, with ``Interrupted``.
    """

    at: float
    clock: Clock = monotonic
    wakeup: Wakeup | None = None

    @classmethod
    def after(cls, seconds: float, clock: Clock = monotonic, wakeup: Wakeup | None = None) -> Deadline:
        """Returns the deadline ``seconds`` from now."""
        return cls(clock() + seconds, clock, wakeup)

    def remaining(self) -> float:
        """Returns the seconds left, never negative."""
        return max(0.0, self.at - self.clock())

    def expired(self) -> bool:
        """Whether no time is left."""
        return self.clock() >= self.at

    def at_most(self, seconds: float) -> Deadline:
        """Returns the earlier of this deadline and ``seconds`` from now."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock, self.wakeup)
