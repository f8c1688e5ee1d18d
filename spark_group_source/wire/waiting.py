"""Waits that end in time: for sockets, and for calls that know no deadline."""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_group_source.clock import Deadline

Result = TypeVar("Result")

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


def bounded(call: Callable[[], Result], deadline: Deadline) -> Result:
    """What ``call`` returns or raises. It runs in a thread of its own, which is left behind at the deadline.

    Raises:
        TimeoutError: it has not returned by then.
    """
    returned: list[Result] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            returned.append(call())
        except Exception as error:  # the caller's, whatever it is
            raised.append(error)

    thread = threading.Thread(target=run, name="bounded", daemon=True)
    thread.start()
    thread.join(deadline.remaining())
    if raised:
        raise raised[0]
    if not returned:
        raise TimeoutError
    return returned[0]
