"""Pauses between tries: each is twice the one before, and varies by chance, as in Kafka's own client (KIP-580).

Without the chance, the members of a group that lost one broker would all come back to it at the same moments.
"""

from __future__ import annotations

import random
from collections.abc import Callable

JITTER = 0.2
"""Part of a pause by which it may be shorter or longer."""

CHANCE = random.Random()
"""Apart from the numbers of a user who has seeded the module's own."""

MOST_DOUBLINGS = 20
"""Beyond this many failures nothing grows any more."""


def doubled(initial: float, maximum: float, times: int) -> float:
    """``initial``, doubled so many times, up to ``maximum``."""
    return min(initial * 2.0 ** min(times, MOST_DOUBLINGS), maximum)


class Backoff:
    """The pauses of tries in a row, in seconds. Jitter may make one longer than ``maximum``.

    Args:
        chance: returns numbers from 0 to 1.
    """

    def __init__(
        self, initial: float, maximum: float, jitter: float = JITTER, chance: Callable[[], float] = CHANCE.random
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._jitter = jitter
        self._chance = chance
        self.failures = 0

    def next(self) -> float:
        """The pause after one more failure."""
        pause = doubled(self._initial, self._maximum, self.failures)
        self.failures += 1
        return pause * (1 + self._jitter * (2 * self._chance() - 1))

    def reset(self) -> None:
        """A try succeeded: the next pause is the first one again."""
        self.failures = 0
