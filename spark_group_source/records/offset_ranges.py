"""The offsets of the record batches of one response, by their headers, and which headers contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class OffsetRanges:
    """The offsets ``[bases[i], nexts[i])`` of each record batch in a response, which was fetched from ``start``."""

    start: int
    bases: npt.NDArray[np.int64]
    nexts: npt.NDArray[np.int64]

    def behind(self, count: int) -> OffsetRanges:
        """The offset ranges without the first ``count``."""
        if not count:
            return self
        return OffsetRanges(self.start, self.bases[count:], self.nexts[count:])

    def end_of_first(self, count: int) -> int:
        """The offset after the first ``count`` record batches; ``start`` if ``count`` is 0."""
        if not count:
            return self.start
        return int(self.nexts[count - 1])

    def count_earlier(self) -> int:
        """How many record batches at the front end before ``start``."""
        if not (self.nexts[:1] <= self.start).any():
            return 0  # as in every response of Kafka's
        earlier = (self.nexts <= self.start) & ~self.impossible
        if earlier.all():
            return len(earlier)
        return int(np.argmin(earlier))

    def count_sound(self) -> int:
        """How many record batches come before the first one whose offsets are wrong."""
        wrong = self.impossible | self.overlapping_behind_gap | self.overlapped
        if not wrong.any():
            return len(wrong)
        return int(np.argmax(wrong))

    def may_hide_next(self, count: int, end: int) -> bool:
        """Whether the last of the first ``count`` record batches, which overlaps the next one, may be the wrong one of
        the two.

        If so, offsets before ``end`` may belong to the next one. If the range starts within the very first record
        batch, only a gap before it would show this.
        """
        if self.overlaps_next[:1].any():
            return True
        if not count:
            return False
        return bool(self.bases[count - 1] < self.bases[count] < end)

    @cached_property
    def impossible(self) -> npt.NDArray[np.bool_]:
        """Rule 1: a record batch that ends before it begins, or begins below zero, is wrong."""
        return (self.nexts <= self.bases) | (self.bases < 0)

    @property
    def overlapping_behind_gap(self) -> npt.NDArray[np.bool_]:
        """Rule 2: of two record batches that overlap, the first is wrong if a gap precedes it."""
        return self.overlaps_next & ~self.contiguous

    @property
    def overlapped(self) -> npt.NDArray[np.bool_]:
        """Rule 3: of two record batches that overlap, the second is wrong if no gap precedes the first."""
        overlapped = np.zeros(len(self.bases), np.bool_)
        np.logical_and(self.overlaps_next[:-1], self.contiguous[:-1], out=overlapped[1:])
        return overlapped

    @cached_property
    def contiguous(self) -> npt.NDArray[np.bool_]:
        """Whether each record batch begins where the one before it ends; the first one, at ``start``."""
        contiguous = np.empty(len(self.bases), np.bool_)
        contiguous[:1] = self.bases[:1] == self.start
        np.equal(self.bases[1:], self.nexts[:-1], out=contiguous[1:])
        return contiguous

    @cached_property
    def overlaps_next(self) -> npt.NDArray[np.bool_]:
        """Whether each record batch ends after the start of the next one."""
        overlaps = np.zeros(len(self.bases), np.bool_)
        np.greater(self.nexts[:-1], self.bases[1:], out=overlaps[:-1])
        return overlaps
