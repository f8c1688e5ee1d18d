"""One partition of the fake cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUT_OF_RANGE, NOT_LEADER = 1, 6


@dataclass
class FakeLog:
    """One partition: its leader, and its record batches as (first offset, next offset, bytes).

    ``nearest`` maps a rack to the follower that the leader names to readers there.
    """

    leader: int | None
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    stable: int | None = None
    nearest: dict[str, int] = field(default_factory=dict)

    def append(self, batch: bytes, offsets: int) -> None:
        """Appends a batch as it is, over that many offsets; its base offset is set, which no checksum covers."""
        based = self.end.to_bytes(8, "big") + batch[8:]
        self.batches.append((self.end, self.end + offsets, based))
        self.end += offsets

    def truncate(self, start: int) -> None:
        """Deletes records before ``start``."""
        self.start = start
        self.batches = [each for each in self.batches if each[1] > start]

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
