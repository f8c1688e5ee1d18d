"""Waiting until one of several sockets has something to read."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable

LONGEST_MS = 10**9
"""Milliseconds of one wait at most, eleven days: the system counts them in 31 bits."""


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Those descriptors that have bytes to read or have ended, after waiting at most ``seconds`` for the first one.

    It is ``poll``, because ``select`` refuses descriptors from 1024 on, which a process with many files open has.
    """
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    # Rounded up: a wait of less than a millisecond must not become a loop that waits for nothing.
    return {each for each, _ in poll.poll(min(math.ceil(max(seconds, 0.0) * 1000), LONGEST_MS))}
