"""The counters of one query."""

from __future__ import annotations

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
    revocation_timed_out: int = 0
    """Of these, partitions whose batch did not end in time: the next owner repeats it."""
    lost: int = 0
    """Partitions lost without a revocation: other members may own them by now."""
    commits: int = 0
    """Commits that stored at least one offset."""
    failed_commits: int = 0
    """Commits that failed as a whole; the next commit includes their offsets."""

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items())
