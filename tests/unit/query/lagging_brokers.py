"""Brokers whose metadata is not complete yet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from tests.fake import Fault


def fails_with(error_code: int, until: float = math.inf) -> Callable[[Any], None]:
    """A response in which no topic has partitions."""

    def edit(answer: Any) -> None:
        for topic in answer.topics if time.monotonic() < until else ():
            topic.error_code, topic.partitions = error_code, []

    return edit


LAGS = Fault(edit=fails_with(3), broker=1)
"""Broker 1 does not know the topic."""
