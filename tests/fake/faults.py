"""Failures of a fake broker, on demand."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ERROR_AT = {
    "FindCoordinator": "coordinators",
    "Metadata": "topics",
    "DescribeGroups": "groups",
    "ConsumerGroupDescribe": "groups",
    "OffsetCommit": "topics.partitions",
    "OffsetFetch": "groups",
    "ListOffsets": "topics.partitions",
    "OffsetForLeaderEpoch": "topics.partitions",
    "Fetch": "responses.partitions",
}
"""Where a response carries its error code; other responses have it at their top level."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What the broker does with one request.

    Args:
        error: responds with this code, without handling the request.
        edit: changes the response (a kafka-python message) before it is sent.
        delay: waits so many seconds before it sends the response.
        hold: waits until this event is set before it sends the response.
        drop: closes the connection ``before`` handling the request, ``after`` it without a response, or once it has
            ``answered``.
        silent: handles the request, but never responds; the connection stays open.
        truncate: sends only so many bytes of the response, framed as if complete; a negative number cuts off its end.
        raw: sends these bytes instead of the response, without framing.
        dribble: sends the response byte by byte, with so many seconds between two bytes.
        throttle: gives this throttle time in seconds, and reads nothing from the connection for as long.
        broker: applies only to requests to this broker; by default to any.
        only: applies only to requests (kafka-python messages) for which this returns true; by default to any.
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
    only: Callable[[Any], bool] | None = None


class Faults:
    """Queues faults by API; each request uses up one fault. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queued: dict[str, deque[Fault]] = defaultdict(deque)

    def add(self, api: str, fault: Fault, times: int) -> None:
        with self._lock:
            self._queued[api].extend([fault] * times)

    def clear(self) -> None:
        with self._lock:
            self._queued.clear()

    def take(self, api: str, broker: int, request: Any) -> Fault | None:
        with self._lock:
            queue = self._queued[api]
            for fault in queue:
                if fault.broker in (None, broker) and (fault.only is None or fault.only(request)):
                    queue.remove(fault)
                    return fault
        return None


def respond(handle: Callable[[str, Any, int], Any], api: str, request: Any, fault: Fault) -> Any:
    """Handles a request; returns the response, changed and held back as the fault says, or ``None`` for none."""
    response = handle(api, request, fault.error or 0)
    if response is None:
        return None
    if fault.error:
        set_error(api, response, fault.error)
    if fault.edit is not None:
        fault.edit(response)
    if fault.throttle:
        response.throttle_time_ms = round(fault.throttle * 1000)
    if fault.hold is not None:
        fault.hold.wait(30.0)
    if fault.delay:
        time.sleep(fault.delay)
    return response


def set_error(api: str, response: Any, error_code: int) -> None:
    """Sets the error code of a response, or of each partition in it."""
    parts = [response]
    for name in filter(None, ERROR_AT.get(api, "").split(".")):
        parts = [inner for outer in parts for inner in getattr(outer, name)]
    for part in [*parts, response] if api in ("FindCoordinator", "OffsetFetch") else parts:
        part.error_code = error_code
        if api == "Metadata":
            part.partitions = []  # as a broker answers that does not know the topic, or who leads it
