"""A clock that a test turns by hand."""

from __future__ import annotations

import threading
import time


class Hand:
    """A clock that only a pause of the test's own thread moves on: however slow the machine is, as many tries fit
    before a deadline."""

    def __init__(self) -> None:
        self.now = 0.0
        self._thread = threading.get_ident()
        self._really_sleep = time.sleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        # The function is everybody's: a thread that an earlier test left behind may be pausing as well.
        if threading.get_ident() == self._thread:
            self.now += seconds
        else:
            self._really_sleep(seconds)
