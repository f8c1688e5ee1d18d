"""Counts the events of a membership, and times the coordinator's responses."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Counts since the query began.

    The member's thread and the query's thread write different fields; the committer's lock guards those of commits.
    """

    batches: int = 0
    """Batches completed."""
    offsets: int = 0
    """Offsets in these batches: at least as many as records, because compaction and transaction markers leave gaps."""
    joins: int = 0
    """Requests to join, with retries; a new member of the classic protocol sends two."""
    rebalances: int = 0
    """Rebalances completed: generations with an assignment for this member; with KIP-848, changes of its assignment."""
    revoked: int = 0
    """Partitions revoked."""
    revoked_late: int = 0
    """Of these, partitions whose batch did not end in time: the next owner repeats it."""
    lost: int = 0
    """Partitions lost without a revocation: other members may own them by now."""
    commits: int = 0
    """Commits that stored at least one offset."""
    failed_commits: int = 0
    """Commits that failed as a whole; the next commit includes their offsets."""

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items())


class Timings:
    """The coordinator's response times by request, since the last report. Thread-safe.

    A JoinGroup takes until all members have joined, a SyncGroup until the leader has assigned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_request: dict[str, tuple[int, float, float]] = {}

    def record(self, request: str, seconds: float) -> None:
        """Records a response, also one with an error. Caller: anybody."""
        name = request.removesuffix("Request")
        with self._lock:
            count, total, longest = self._by_request.get(name, (0, 0.0, 0.0))
            self._by_request[name] = count + 1, total + seconds, max(longest, seconds)

    def take_report(self) -> str:
        """Returns number, mean and maximum for each request as text, and starts again. Caller: the query."""
        with self._lock:
            by_request, self._by_request = self._by_request, {}
        return ", ".join(
            f"{count} {name} in {total / count * 1000:.0f} ms (at most {longest * 1000:.0f})"
            for name, (count, total, longest) in sorted(by_request.items())
        )
