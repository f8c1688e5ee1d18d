"""What a fake broker does wrong, on demand."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ERROR_AT = {
    "FindCoordinator": "coordinators",
    "Metadata": "topics",
    "DescribeGroups": "groups",
    "OffsetCommit": "topics.partitions",
    "OffsetFetch": "groups",
    "ListOffsets": "topics.partitions",
    "OffsetForLeaderEpoch": "topics.partitions",
    "Fetch": "responses.partitions",
}
"""Where an answer carries its error code; the others do at their top."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request.

    Args:
        error: answer with this code, and do nothing of what was asked.
        edit: changes the answer (a kafka-python message) before it is sent.
        delay: seconds until the answer is sent.
        hold: the answer is sent when this is set.
        drop: close the connection: ``before`` it is done, ``after`` and without an answer, or when it is ``answered``.
        silent: do it, but never answer; the connection stays open.
        truncate: bytes of the answer that are sent, framed as if they were all; negative ones are cut off its end.
        raw: sent in place of the answer as it is, without framing.
        dribble: the answer is sent byte by byte, with so many seconds between.
        throttle: seconds that the answer gives as throttle time; the connection is not read from for as long.
        broker: only where this broker is asked; any by default.
    """

    error: int | None = None
    edit: Callable[[Any], None] | None = None
    delay: float = 0.0
    hold: threading.Event | None = None
    drop: str = ""
    silent: bool = False
    truncate: int | None = None
    raw: bytes | None = None
    dribble: float | None = None
    throttle: float = 0.0
    broker: int | None = None


class Faults:
    """Faults to come, by API; each is used up by one request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coming: dict[str, deque[Fault]] = defaultdict(deque)

    def add(self, api: str, fault: Fault, times: int) -> None:
        """The next ``times`` requests of ``api``, for example ``Heartbeat``, meet ``fault``."""
        with self._lock:
            self._coming[api].extend([fault] * times)

    def clear(self) -> None:
        """What has not been used up does not happen."""
        with self._lock:
            self._coming.clear()

    def take(self, api: str, broker: int) -> Fault | None:
        """The fault that this request meets."""
        with self._lock:
            queue = self._coming[api]
            for fault in queue:
                if fault.broker in (None, broker):
                    queue.remove(fault)
                    return fault
        return None


def put_error(api: str, answer: Any, errno: int) -> None:
    """Sets the error code of an answer: of each of its partitions where it has some."""
    found = [answer]
    for name in filter(None, ERROR_AT.get(api, "").split(".")):
        found = [inner for outer in found for inner in getattr(outer, name)]
    for each in found:
        each.error_code = errno
