"""What happened to a membership, counted: each of these is also one line in the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Counts since the query began.

    Written by the member's thread and the query's, each its own fields; those of commits under the lock of commits.
    """

    batches: int = 0
    """Batches completed."""
    joins: int = 0
    """Times this member asked to join; a new one asks twice."""
    rebalances: int = 0
    """Generations this member has been in."""
    handed_over: int = 0
    """Partitions given up in order."""
    handed_over_late: int = 0
    """Of these, partitions whose batch did not end in time, so that the next owner repeats it."""
    lost: int = 0
    """Partitions taken away."""
    commits: int = 0
    """Commits that the group has taken."""
    failed_commits: int = 0
    """Commits that failed as a whole, and were tried again with the next."""

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items())
