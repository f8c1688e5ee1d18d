"""The position of a task in one range, its backoff after errors, and the sizes of the last records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

from spark_group_source.fetch.messages import FetchErrorAction
from spark_group_source.fetch.task_settings import MAX_REQUEST_BYTES
from spark_group_source.offsets import UNKNOWN_EPOCH, OffsetRange, TopicPartition
from spark_group_source.records.batches import RecordBatches

ESTIMATED_RECORD_SIZE = 1024
"""Estimated size in bytes of a record until the first response of its partition."""
MAX_FIRST_FETCH = 2**20
"""Maximum size in bytes of a fetch until the first response of its partition. Smaller records than estimated make more
of a response useless, and from a distant broker a MiB takes up to half a second."""
MIN_FETCH = 64 * 1024
"""Size in bytes that a fetch may always request of one partition."""
READ_AHEAD = 4
"""Factor by which a fetch exceeds a small range. A response that also holds the next ranges saves requests. With a
larger factor, more would be wasted if another executor reads them."""
MIN_READ_AHEAD = 8192
"""Minimum size in bytes of a fetch beyond its range. Reading ahead less would cost more than the fetch that it
saves."""
MAX_PARTITIONS = 100_000
"""Maximum number of partitions whose sizes a worker keeps."""

_known: dict[tuple[str, int], RecordSizes] = {}


@dataclass(slots=True)
class RecordSizes:
    """The sizes of a partition's records in bytes; 0 before the first response.

    ``bytes_per_offset`` is the mean size of a record, with its share of the header, as stored: compressed, and with
    gaps. ``largest_batch`` is the size of the largest record batch of the last response.
    """

    bytes_per_offset: float = 0.0
    largest_batch: int = 0

    def observe(self, batches: RecordBatches) -> None:
        """Updates the sizes from a response with at least one complete record batch."""
        boundaries = batches.boundaries
        sizes = [end - start for start, end in pairwise(boundaries)]
        self.largest_batch = max(sizes)
        next_offset = batches.next_offset
        assert next_offset is not None
        self.bytes_per_offset = boundaries[-1] / (next_offset - batches.base_offset(0))

    def fetch_bytes(self, offsets: int, limit: int, max_read_ahead: int = MIN_FETCH) -> int:
        """The size of a fetch for this number of offsets, from the start of a record batch; at most ``limit``.

        A broker cuts the last record batch at the requested size, and the next fetch requests that record batch again.
        So the size is that of whole record batches, as if each were as large as the largest.
        """
        if not self.largest_batch:
            estimated = min(offsets * ESTIMATED_RECORD_SIZE, MAX_FIRST_FETCH)
            return min(max(estimated, max_read_ahead), limit)
        needed = ceil(offsets * self.bytes_per_offset / self.largest_batch) * self.largest_batch
        ahead = min(READ_AHEAD * needed, max_read_ahead)
        # One more if record batches are small: its header shows whether the header before it is right.
        wanted = needed + self.largest_batch
        if ahead >= MIN_READ_AHEAD:
            wanted = max(needed, ahead)
        if self.largest_batch > limit:
            return min(wanted, limit)
        return min(wanted, limit // self.largest_batch * self.largest_batch)


def sizes_of(topic: str, partition: int) -> RecordSizes:
    """The sizes of a partition, which all tasks of this worker share. ``topic`` is the id or name of its topic."""
    if len(_known) >= MAX_PARTITIONS:
        _known.clear()
    return _known.setdefault((topic, partition), RecordSizes())


@dataclass
class FetchPosition:
    """The position in one range: ``offset`` is the next one to fetch.

    ``topic_id`` is empty while it is unknown. ``sizes`` are the sizes of its records. ``partition_max_bytes`` is the
    size of the next fetch: up to ``max_bytes``, of which up to ``max_read_ahead`` are for the ranges of later tasks. It
    is larger if a single record batch is larger. ``next_fetch_at`` is the earliest time of the next fetch, in monotonic
    seconds; ``backoff`` is the delay after an error in seconds, 0 without an error. ``last_problem`` describes the last
    error. ``pause`` is the delay after a response without progress in seconds, 0 after progress. ``waiting_since`` is
    when the task first asked for the next records, in the time of its :class:`TaskTimeout`; ``None`` once records have
    come. ``leader_epoch`` is the epoch of the current leader. ``verified_epoch`` is the epoch of the last
    leader that is known to have the range up to its end; it stays unknown if the range has no epoch.
    """

    range: OffsetRange
    topic_id: str
    offset: int
    sizes: RecordSizes
    max_bytes: int
    max_read_ahead: int
    partition_max_bytes: int = field(init=False)
    leader_epoch: int = UNKNOWN_EPOCH
    verified_epoch: int = UNKNOWN_EPOCH
    next_fetch_at: float = 0.0
    backoff: float = 0.0
    pause: float = 0.0
    waiting_since: float | None = None
    last_problem: str = "the brokers sent nothing"
    last_action: FetchErrorAction | None = field(default=None, init=False)
    last_error: int = field(default=0, init=False)
    _attempts: int = field(default=0, init=False)
    _damaged_at: int = field(default=-1, init=False)
    _damages: list[str] = field(default_factory=list, init=False)

    @classmethod
    def at_start(cls, offset_range: OffsetRange, max_bytes: int, max_read_ahead: int) -> FetchPosition:
        """The start of a range; no fetch requests more than ``max_bytes`` of its partition."""
        topic = offset_range.topic
        if offset_range.topic_id:
            topic = offset_range.topic_id
        sizes = sizes_of(topic, offset_range.partition)
        topic_id, start, epoch = offset_range.topic_id, offset_range.start, offset_range.epoch
        return cls(offset_range, topic_id, start, sizes, max_bytes, max_read_ahead, verified_epoch=epoch)

    def __post_init__(self) -> None:
        self._resize()

    @property
    def tp(self) -> TopicPartition:
        """The partition of the range."""
        return self.range.tp

    @property
    def done(self) -> bool:
        """Whether the task has read the whole range."""
        return self.offset >= self.range.end

    @property
    def needs_epoch_check(self) -> bool:
        """Whether the log of the current leader may differ from the log that the range was planned in."""
        epochs = self.verified_epoch, self.leader_epoch
        return UNKNOWN_EPOCH not in epochs and self.leader_epoch != self.verified_epoch

    def end_range_at(self, offset: int) -> None:
        """Ends the range at ``offset``, or at the position if that is further."""
        self.range = replace(self.range, end=max(offset, self.offset))

    def advance(self, offset: int) -> None:
        """Moves to ``offset``, after the task has read or skipped the records before it."""
        self.offset = offset
        self._resize()
        self._attempts, self.last_action = 0, None
        self.next_fetch_at = self.backoff = self.pause = 0.0
        self.waiting_since = None

    def rewind(self, offset: int) -> None:
        """Moves back to ``offset``, because the records received from there gave no rows."""
        self.offset = offset
        self._resize()

    def request_more(self, batch_size: int) -> None:
        """Doubles the size of the next fetch, to at least ``batch_size``, because a record batch was incomplete."""
        self.partition_max_bytes = min(max(self.partition_max_bytes * 2, batch_size), MAX_REQUEST_BYTES)

    def _resize(self) -> None:
        self.partition_max_bytes = self.sizes.fetch_bytes(
            self.range.end - self.offset, self.max_bytes, self.max_read_ahead
        )

    def count_attempt(self, action: FetchErrorAction, error_code: int = 0) -> int:
        """Counts an attempt, and returns how many attempts in a row, including this one, had the same action.

        Until the position advances, ``last_action`` and ``last_error`` are the problem that is still to be confirmed.
        """
        if action is not self.last_action:
            self._attempts = 0
        self._attempts += 1
        self.last_action, self.last_error = action, error_code
        return self._attempts

    def note_no_records(self, problem: str) -> None:
        """Notes why an intact response has no records. Errors of earlier responses no longer count.

        Damage from the same offset still counts: a response without records does not show that they are intact.
        """
        self.last_problem = problem
        self._attempts, self.last_action = 0, None
        self.backoff = 0.0

    def note_damage(self, damage: str) -> tuple[int, int]:
        """Notes damage in the records that were fetched from the current offset.

        Returns how many responses from this offset had this damage, and how many were damaged in any way. Both counts
        include this response.
        """
        if self._damaged_at != self.offset:
            self._damaged_at, self._damages = self.offset, []
        self._damages.append(damage)
        return self._damages.count(damage), len(self._damages)

    def back_off(self, problem: str, now: float, min_backoff: float, max_backoff: float) -> None:
        """Delays the next fetch, twice as long as the last time, within these limits in seconds."""
        self.last_problem = problem
        self.backoff = min(max(self.backoff * 2, min_backoff), max_backoff)
        self.next_fetch_at = now + self.backoff

    def wait_for_progress(self, sent_at: float, min_pause: float, max_pause: float) -> None:
        """Delays the next fetch after a response without progress, twice as long as the last time.

        Args:
            sent_at: the time of that fetch, from which the delay counts. So the time that a broker waits is part of the
                delay.
            min_pause: the first delay in seconds.
            max_pause: the maximum delay in seconds.
        """
        self.pause = min(max(self.pause * 2, min_pause), max_pause)
        self.next_fetch_at = max(self.next_fetch_at, sent_at + self.pause)
