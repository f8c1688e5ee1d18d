"""One partition of the fake cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUT_OF_RANGE, NOT_LEADER, FENCED_EPOCH, UNKNOWN_EPOCH = 1, 6, 74, 75


@dataclass
class FakeLog:
    """One partition: its leader, and its record batches as (first offset, next offset, bytes).

    Records without bytes may follow: only their offsets exist. ``stable`` is where the first open transaction begins.
    ``nearest`` maps a rack to the follower that the leader names to readers in that rack. ``epochs`` are pairs of a
    leader epoch and its first offset; the last epoch is the leader's.
    """

    leader: int | None
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    stable: int | None = None
    nearest: dict[str, int] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    times: list[tuple[int, int]] = field(default_factory=list)
    """The first offsets of records without bytes, with their timestamps in milliseconds."""
    markers: set[int] = field(default_factory=set)
    """The offsets of transaction markers: no reader gets a record there."""

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    def elect(self, leader: int | None, end: int | None) -> None:
        """Begins a new epoch, by default with the same leader. ``end`` truncates the log."""
        self.end = self.end if end is None else min(self.end, end)
        self.batches = [each for each in self.batches if each[1] <= self.end]
        self.times = [each for each in self.times if each[0] < self.end]
        self.markers = {each for each in self.markers if each < self.end}
        self.stable = None if self.stable is None or self.stable > self.end else self.stable
        self.start = min(self.start, self.end)
        self.leader = leader or self.leader
        kept = [each for each in self.epochs if each[1] < self.end]
        self.epochs = [*kept, (self.epoch + 1, self.end)]

    def epoch_error(self, epoch: int) -> int:
        """Returns the error code for a client that expects this leader epoch; 0 if it is right, or -1 (unknown)."""
        return 0 if epoch in (-1, self.epoch) else FENCED_EPOCH if epoch < self.epoch else UNKNOWN_EPOCH

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Returns the largest epoch up to this one, and its end offset; (-1, -1) for a future epoch."""
        if epoch >= self.epoch:
            return (epoch, self.end) if epoch == self.epoch else (-1, -1)
        end = next(start for later, start in self.epochs if later > epoch)
        return max((known for known, _ in self.epochs if known <= epoch), default=epoch), end

    def append(self, batch: bytes, offsets: int) -> None:
        """Appends a batch that covers so many offsets; no checksum covers its base offset and leader epoch."""
        placed = self.end.to_bytes(8, "big") + batch[8:12] + self.epoch.to_bytes(4, "big") + batch[16:]
        self.batches.append((self.end, self.end + offsets, placed))
        self.end += offsets

    def append_count(self, offsets: int, timestamp: int | None = None) -> None:
        """Appends records without bytes, which is cheap: a reader never gets them."""
        if timestamp is not None and offsets:
            self.times.append((self.end, timestamp))
        self.end += offsets

    def append_marker(self) -> None:
        """Appends the marker that ends a transaction, without bytes."""
        self.markers.add(self.end)
        self.end += 1

    def after_last_record(self, offset: int, start: int = 0) -> int:
        """Where a client that has read up to ``offset``, from ``start`` on, got its last record: the next offset."""
        while offset > start and offset - 1 in self.markers:
            offset -= 1
        return offset

    def committed_end(self, isolation_level: int) -> int:
        """Returns the end for readers with this isolation level: 1 reads only what is committed."""
        return self.end if self.stable is None or isolation_level == 0 else min(self.stable, self.end)

    def truncate(self, start: int) -> None:
        self.start, self.end = start, max(self.end, start)
        self.batches = [each for each in self.batches if each[1] > start]
        # Like a broker: the epoch that contains the new start begins at it.
        past = [epoch for epoch, begin in self.epochs if begin <= start]
        self.epochs = [(past[-1], start), *(each for each in self.epochs if each[1] > start)]

    def list_offset(self, timestamp: int, isolation_level: int) -> tuple[int, int]:
        """Returns an offset and its leader epoch: the start for -2, the end for -1, or the first at or after a time.

        Both are -1 if there is none.
        """
        end = self.committed_end(isolation_level)
        if timestamp == -1:
            return end, self.epoch
        if timestamp < 0:
            return self.start, self._epoch_at(self.start)
        # Of batches the largest timestamp, which stands in the header of format 2.
        latest_times = [(first, int.from_bytes(raw[35:43], "big", signed=True)) for first, _, raw in self.batches]
        for first, latest in latest_times or self.times:
            if latest >= timestamp and first < end:
                found = max(first, self.start)
                return found, self._epoch_at(found)
        return -1, -1

    def _epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, begin in self.epochs if begin <= offset), default=-1)

    def has_response(self, offset: int, isolation_level: int) -> bool:
        """Whether a fetch from this offset gets records or an error at once."""
        return not self.start <= offset <= self.end or offset < self.committed_end(isolation_level)

    def fetch(self, requested: Any, node: int, rack: str, isolation_level: int, response: Any) -> None:
        """Fills ``response`` as broker ``node`` does for a reader in ``rack``."""
        if self.leader != node and node not in self.nearest.values():
            response.error_code = NOT_LEADER
        elif error_code := self.epoch_error(requested.current_leader_epoch):
            response.error_code = error_code
        elif self.leader == node and rack in self.nearest:
            response.preferred_read_replica = self.nearest[rack]
        elif not self.start <= requested.fetch_offset <= self.end:
            response.error_code = OUT_OF_RANGE
        else:
            response.high_watermark, response.last_stable_offset = self.end, self.committed_end(1)
            response.log_start_offset = self.start
            response.aborted_transactions = [] if isolation_level else None
            stop = self.committed_end(isolation_level)
            batches = [raw for first, end, raw in self.batches if end > requested.fetch_offset and first < stop]
            response.records = b"".join(batches)


def fit(records: bytes, size: int, *, first: bool) -> bytes:
    """What a broker sends of record batches: the last one may be cut (KIP-74).

    If not even one fits, the broker sends it whole if the partition is the first with records, and otherwise nothing.
    """
    one = int.from_bytes(records[8:12], "big") + 12 if records else 0
    if one > size:
        return records[:one] if first else b""
    return records[:size]
