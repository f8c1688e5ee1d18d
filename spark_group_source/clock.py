"""A monotonic clock that tests can replace, deadlines on it, intervals between repeated log lines, and exponential
backoff with jitter (KIP-580), in seconds.

Without jitter, all members of a group that lost a broker would reconnect to it at the same moments.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]
"""Returns monotonic seconds; only differences are meaningful."""

BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux only: the clock that continues while the machine is suspended, as the sessions at the coordinators do."""

AWAKE_TIME: int = getattr(time, "CLOCK_MONOTONIC", 0)
"""Linux: the clock that stops while the machine is suspended."""


def monotonic() -> float:
    """Monotonic seconds, which include the time that the machine was suspended if the system reports it."""
    if BOOT_TIME is None:
        return time.monotonic()
    return time.clock_gettime(BOOT_TIME)


def suspended_seconds() -> float:
    """The total seconds for which this machine was suspended since it started; 0 if the system does not report them."""
    if BOOT_TIME is None:
        return 0.0
    return time.clock_gettime(BOOT_TIME) - time.clock_gettime(AWAKE_TIME)


class Wakeup(Protocol):
    """Ends a wait early; :class:`spark_group_source.wire.waiting.WakeupPipe` implements it."""

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

    def share(self, parts: int) -> Deadline:
        """Returns the deadline of one of ``parts`` equal parts of the time left, which begins now."""
        return self.at_most(self.remaining() / parts)


WARN_EVERY = 60.0
"""Seconds between two warnings about a problem that lasts."""


@dataclass(slots=True)
class LogEvery:
    """Lets a repeated log line through once in an ``interval``; the first one at once, or at ``due_at``."""

    interval: float
    clock: Clock = monotonic
    due_at: float = float("-inf")

    def try_acquire(self) -> bool:
        """Whether a line is due. If so, the caller must log it: the next line is due after the interval."""
        if self.clock() < self.due_at:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Makes the next line due after the interval."""
        self.due_at = self.clock() + self.interval


JITTER = 0.2
"""Maximum random change of a backoff, as a fraction of the backoff."""

RANDOM = random.Random()
"""A separate generator, because a user may seed the generator of the ``random`` module."""

MAX_DOUBLINGS = 20


def exponential(initial: float, maximum: float, failures: int) -> float:
    """Returns ``initial``, doubled with each failure, up to ``maximum``."""
    return min(initial * 2.0 ** min(failures, MAX_DOUBLINGS), maximum)


class Backoff:
    """Backoffs of retries in a row, in seconds. Jitter may make a backoff longer than ``maximum``.

    Args:
        chance: returns numbers from 0 to 1.
    """

    def __init__(
        self, initial: float, maximum: float, jitter: float = JITTER, chance: Callable[[], float] = RANDOM.random
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._jitter = jitter
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """Counts one more failure and returns the backoff before the next try."""
        seconds = exponential(self._initial, self._maximum, self.failures)
        self.failures += 1
        return seconds * (1 + self._jitter * (2 * self._chance() - 1))

    def reset(self) -> None:
        """Starts again with the initial backoff, because a try succeeded."""
        self.failures = 0
