"""The options of the measured groups, and how long to wait for them."""

from __future__ import annotations

import time

POLL_S = 0.01
TIMEOUT_S = 120.0

Options = dict[str, str]
"""Options of the source."""


def check_time(began: float, what: str) -> None:
    """Raises TimeoutError if the wait that began then has taken too long."""
    if time.monotonic() - began > TIMEOUT_S:
        raise TimeoutError(f"waited {TIMEOUT_S:.0f} s for {what}")
