"""A token of a token endpoint, and when it is renewed.

The window in which a token is renewed follows Kafka's Java client (``sasl.login.refresh.*``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

EXPIRY_MARGIN = 1.0
"""How many seconds before its end a token is no longer used, but at most a tenth of its lifetime. The broker must
receive the token in time, and the times of tokens are whole seconds."""


@dataclass(frozen=True, slots=True, repr=False)
class IssuedToken:
    """A token that a token endpoint has issued.

    Attributes:
        text: the token itself, a secret.
        lifetime: for how many seconds after its arrival the token is valid.
        holder: the token's subject and scope as the end of a phrase for the log; empty if unknown.
    """

    text: str
    lifetime: float
    holder: str = ""


Random = Callable[[], float]
"""Returns a number from 0 to 1."""


@dataclass(frozen=True, slots=True)
class RefreshWindow:
    """``factor`` and ``jitter`` are parts of a token's lifetime; ``min_period`` and ``buffer`` are in seconds.

    The jitter spreads the requests of many clients that started together.
    """

    factor: float = 0.8
    jitter: float = 0.05
    min_period: float = 60.0
    buffer: float = 300.0

    def delay(self, lifetime: float, rng: Random = random.random) -> float:
        """Returns how many seconds after its arrival a token that is valid for ``lifetime`` seconds is renewed."""
        wanted = lifetime * min(self.factor + self.jitter * rng(), 1.0)
        if self.min_period + self.buffer > lifetime:
            return wanted
        return max(min(wanted, lifetime - self.buffer), self.min_period)
