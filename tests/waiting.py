"""How tests wait for what other threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMEOUT = 90.0
"""Seconds that a slow machine keeps."""

POLL = 0.005


def eventually(condition: Callable[[], Any]) -> Any:
    """Waits until ``condition`` returns a true value, and returns it."""
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {TIMEOUT:.0f} s: {condition}"
        time.sleep(POLL)
    return value
