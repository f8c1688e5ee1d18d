"""Where the reading of one range stands, and when it goes on after an error."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_group_source.fetch.errors import Remedy
from spark_group_source.offsets import UNKNOWN_EPOCH, OffsetRange, TopicPartition

FIRST_BYTES = 64 * 1024
"""Least bytes asked of a partition. A small range asks for little first, so that a batch of few records does not fetch
megabytes of what comes after it."""
BYTES_PER_RECORD = 1024
"""Guess for the first fetch of a range; what follows doubles."""
MOST_BYTES = 2**31 - 1
"""What a request can ask for."""


@dataclass
class Cursor:
    """One range in the reading. Offsets; sizes in bytes; times in monotonic seconds.

    ``topic_id`` is empty until it is known. ``due`` is when the next fetch may be sent, ``pause`` the wait before that
    after an error, 0 where all is well. ``trouble`` tells what the last error was. ``leader_epoch`` is the epoch of the
    leader that is asked. ``confirmed`` is the epoch of the last leader whose log is known to hold the range up to its
    end; it stays unknown where the range has no epoch.
    """

    range: OffsetRange
    topic_id: str
    position: int
    max_bytes: int
    leader_epoch: int = UNKNOWN_EPOCH
    confirmed: int = UNKNOWN_EPOCH
    due: float = 0.0
    pause: float = 0.0
    trouble: str = "the brokers sent nothing"
    _tries: int = 0
    _tried: Remedy | None = None

    @classmethod
    def at_start(cls, each: OffsetRange, most_bytes: int) -> Cursor:
        """The beginning of a range, of which no fetch brings more than ``most_bytes``."""
        first_bytes = min(max(each.size * BYTES_PER_RECORD, FIRST_BYTES), most_bytes)
        return cls(each, each.topic_id, each.start, first_bytes, confirmed=each.epoch)

    @property
    def tp(self) -> TopicPartition:
        """The partition read."""
        return self.range.tp

    @property
    def done(self) -> bool:
        """Whether everything of the range was read."""
        return self.position >= self.range.end

    @property
    def unconfirmed(self) -> bool:
        """Whether the leader that is asked may have another log than the range was planned in."""
        return UNKNOWN_EPOCH not in (self.confirmed, self.leader_epoch) and self.leader_epoch != self.confirmed

    def end_at(self, offset: int) -> None:
        """The range ends there, or at the position where that is further."""
        self.range = replace(self.range, end=max(offset, self.position))

    def advance(self, position: int, most_bytes: int) -> None:
        """Everything before ``position`` was read, or is skipped."""
        self.position = position
        self.max_bytes = min(self.max_bytes * 2, most_bytes)
        self._tries, self._tried = 0, None
        self.due = self.pause = 0.0

    def widen(self, wanted: int) -> None:
        """A fetch brought less than one batch: the next asks for ``wanted`` bytes, or double."""
        self.max_bytes = min(max(self.max_bytes * 2, wanted), MOST_BYTES)

    def count(self, tried: Remedy) -> int:
        """How often in a row, now included, this remedy was called for."""
        self._tries = self._tries + 1 if tried is self._tried else 1
        self._tried = tried
        return self._tries

    def hold(self, trouble: str, now: float, least: float, most: float) -> None:
        """Waits before the next fetch, twice as long as the last time, at least and at most that many seconds."""
        self.trouble = trouble
        self.pause = min(max(self.pause * 2, least), most)
        self.due = now + self.pause
