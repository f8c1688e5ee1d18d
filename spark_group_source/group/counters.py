"""What happened to a membership, counted and timed: what is counted is also one line in the log each."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Counts since the query began.

    Written by the member's thread and the query's, each its own fields; those of commits under the lock of commits.
    """

    batches: int = 0
    """Batches completed."""
    offsets: int = 0
    """Offsets that these covered: at least their records, as compaction and markers leave gaps."""
    joins: int = 0
    """Times this member asked to join; a new one asks twice."""
    rebalances: int = 0
    """Generations this member has been in."""
    revoked: int = 0
    """Partitions given up in order."""
    revoked_late: int = 0
    """Of these, partitions whose batch did not end in time, so that the next owner repeats it."""
    lost: int = 0
    """Partitions taken away."""
    commits: int = 0
    """Commits that the group has taken."""
    failed_commits: int = 0
    """Commits that failed as a whole, and were tried again with the next."""

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items())


class Timings:
    """How long the group's coordinator took to answer, by request, since this was told last.

    A JoinGroup lasts until all members have joined, a SyncGroup until the leader has assigned. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took: dict[str, tuple[int, float, float]] = {}

    def answered(self, request: str, seconds: float) -> None:
        """A request was answered, with an error or without. Caller: anybody."""
        name = request.removesuffix("Request")
        with self._lock:
            count, total, longest = self._took.get(name, (0, 0.0, 0.0))
            self._took[name] = count + 1, total + seconds, max(longest, seconds)

    def told(self) -> str:
        """Number, mean and longest of each request's answers, as a text; a new period begins. Caller: the query."""
        with self._lock:
            took, self._took = self._took, {}
        return ", ".join(
            f"{count} {name} in {total / count * 1000:.0f} ms (at most {longest * 1000:.0f})"
            for name, (count, total, longest) in sorted(took.items())
        )
