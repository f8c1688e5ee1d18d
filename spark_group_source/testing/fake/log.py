"""One partition of the fake cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUT_OF_RANGE, NOT_LEADER, FENCED_EPOCH, UNKNOWN_EPOCH = 1, 6, 74, 75


@dataclass
class FakeLog:
    """One partition: its leader, and its record batches as (first offset, next offset, bytes).

    ``nearest`` maps a rack to the follower that the leader names to readers there. ``epochs`` are leader epochs and
    the offsets where they begin; the last one is the leader's.
    """

    leader: int | None
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    stable: int | None = None
    nearest: dict[str, int] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    @property
    def epoch(self) -> int:
        """The leader's epoch."""
        return self.epochs[-1][0]

    def elect(self, leader: int | None, end: int | None) -> None:
        """Begins a new epoch. Without a ``leader`` it is the same one; an ``end`` cuts the log there."""
        self.end = self.end if end is None else min(self.end, end)
        self.batches = [each for each in self.batches if each[1] <= self.end]
        self.leader = leader or self.leader
        kept = [each for each in self.epochs if each[1] < self.end]
        self.epochs = [*kept, (self.epoch + 1, self.end)]

    def fenced(self, epoch: int) -> int:
        """The error code for a client that takes ``epoch`` for the leader's; 0 where that is right, or -1."""
        return 0 if epoch in (-1, self.epoch) else FENCED_EPOCH if epoch < self.epoch else UNKNOWN_EPOCH

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is at most this one, and where it ends; -1 twice where it is later than any."""
        if epoch >= self.epoch:
            return (epoch, self.end) if epoch == self.epoch else (-1, -1)
        after = next(start for each, start in self.epochs if each > epoch)
        return max((each for each, _ in self.epochs if each <= epoch), default=epoch), after

    def append(self, batch: bytes, offsets: int) -> None:
        """Appends a batch as it is, over that many offsets; no checksum covers its base offset and leader epoch."""
        based = self.end.to_bytes(8, "big") + batch[8:12] + self.epoch.to_bytes(4, "big") + batch[16:]
        self.batches.append((self.end, self.end + offsets, based))
        self.end += offsets

    def truncate(self, start: int) -> None:
        """Deletes records before ``start``."""
        self.start = start
        self.batches = [each for each in self.batches if each[1] > start]
        # As a broker does it: the epoch that the beginning lies in begins there.
        past = [epoch for epoch, begin in self.epochs if begin <= start]
        self.epochs = [(past[-1], start), *(each for each in self.epochs if each[1] > start)]

    def offset(self, timestamp: int, read_committed: bool) -> int:
        """What ListOffsets finds: the beginning for -2, the end for -1, or where records are as late; -1 for none."""
        end = self.end if not read_committed or self.stable is None else self.stable
        if timestamp < 0:
            return self.start if timestamp == -2 else end
        for first, _, raw in self.batches:
            latest = int.from_bytes(raw[35:43], "big", signed=True)  # the largest timestamp, in the header of format 2
            if latest >= timestamp and first < end:
                return max(first, self.start)
        return -1

    def answers(self, offset: int) -> bool:
        """Whether a fetch from there is answered at once: with records or with an error."""
        return not self.start <= offset <= self.end or offset < self.end

    def fetch(self, asked: Any, node: int, rack: str, told: Any) -> None:
        """Puts into ``told`` what broker ``node`` answers to a reader in ``rack``."""
        if self.leader != node and node not in self.nearest.values():
            told.error_code = NOT_LEADER
        elif fenced := self.fenced(asked.current_leader_epoch):
            told.error_code = fenced
        elif self.leader == node and rack in self.nearest:
            told.preferred_read_replica = self.nearest[rack]
        elif not self.start <= asked.fetch_offset <= self.end:
            told.error_code = OUT_OF_RANGE
        else:
            told.high_watermark, told.last_stable_offset, told.log_start_offset = self.end, self.end, self.start
            found = [raw for _, after, raw in self.batches if after > asked.fetch_offset]
            # At least one batch is whole, whatever its size; the last of several may be cut.
            size = max(asked.partition_max_bytes, len(found[0]) if found else 0)
            told.records = b"".join(found)[:size]
