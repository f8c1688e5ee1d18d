"""The response times of a group's coordinator."""

from __future__ import annotations

import threading


class Timings:
    """The coordinator's response times by request, since the last report. Thread-safe.

    A JoinGroup takes until all members have joined, a SyncGroup until the leader has assigned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_request: dict[str, tuple[int, float, float]] = {}

    def record(self, request: str, seconds: float) -> None:
        """Records a response, even one with an error. Caller: any thread."""
        name = request.removesuffix("Request")
        with self._lock:
            count, total, longest = self._by_request.get(name, (0, 0.0, 0.0))
            self._by_request[name] = count + 1, total + seconds, max(longest, seconds)

    def take_report(self) -> str:
        """Returns number, mean and maximum for each request as text, and starts again. Caller: the query's thread."""
        with self._lock:
            by_request, self._by_request = self._by_request, {}
        return ", ".join(
            f"{count} {name} in {total / count * 1000:.0f} ms (at most {longest * 1000:.0f})"
            for name, (count, total, longest) in sorted(by_request.items())
        )
