"""Functions for ``rebalanceCallback``, which the process of a query loads by name."""

from __future__ import annotations

import os
import time
from pathlib import Path

BEGUN, SECONDS = "CALLBACK_BEGUN", "CALLBACK_SECONDS"
"""Environment variables: the file that the second call makes, and how long that call then takes."""

_calls: list[float] = []


def stand_still_the_second_time(old: object, new: object) -> None:
    """Blocks the member's thread, as a callback does that waits for a service that is down."""
    _calls.append(time.time())
    if len(_calls) == 2:
        Path(os.environ[BEGUN]).touch()
        time.sleep(float(os.environ[SECONDS]))


FURTHER = 10


def further(old: dict[str, dict[int, int]], new: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Moves the start of partitions that the query has never read."""
    return {
        topic: {number: at + FURTHER for number, at in starts.items() if number not in old.get(topic, {})}
        for topic, starts in new.items()
    }


def take_a_while(old: object, new: object) -> None:
    """The start is found, and not used yet: records arrive meanwhile."""
    Path(os.environ[BEGUN]).touch()
    time.sleep(3.0)
