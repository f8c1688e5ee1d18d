"""Exponential backoff with jitter, as in Kafka's own client (KIP-580).

Without jitter, all members of a group that lost a broker would reconnect to it at the same moments.
"""

from __future__ import annotations

import random
from collections.abc import Callable

JITTER = 0.2
"""Largest part of a backoff that chance adds or removes."""

RANDOM = random.Random()
"""A generator of its own, because a user may seed the one of the ``random`` module."""

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
