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
        """Those without the first ones."""
        return OffsetRanges(self.start, self.bases[count:], self.nexts[count:]) if count else self

    def count_earlier(self) -> int:
        """How many at the front end before ``start``."""
        if not (self.nexts[:1] <= self.start).any():
            return 0  # as in every response of Kafka's
        earlier = (self.nexts <= self.start) & ~self.impossible
        return len(earlier) if earlier.all() else int(np.argmin(earlier))

    def count_sound(self) -> int:
        """How many come before the first one that is wrong."""
        wrong = self.impossible | self._contradicts_neighbours()
        return int(np.argmax(wrong)) if wrong.any() else len(wrong)

    def may_hide_next(self, count: int, end: int) -> bool:
        """Whether the last of the first ``count``, which overlaps the next one, may be the wrong one of both.

        Then offsets before ``end`` may be those of the next one. If the range starts within the very first one, only a
        gap before it would tell.
        """
        if self.overlaps_next[:1].any():
            return True
        return count > 0 and bool(self.bases[count - 1] < self.bases[count] < end)

    @cached_property
    def impossible(self) -> npt.NDArray[np.bool_]:
        """Whether each one ends before it begins, or begins below zero."""
        return (self.nexts <= self.bases) | (self.bases < 0)

    @cached_property
    def contiguous(self) -> npt.NDArray[np.bool_]:
        """Whether each one begins where the one before it ends, or the first one at ``start``."""
        contiguous = np.empty(len(self.bases), np.bool_)
        contiguous[:1] = self.bases[:1] == self.start
        np.equal(self.bases[1:], self.nexts[:-1], out=contiguous[1:])
        return contiguous

    @cached_property
    def overlaps_next(self) -> npt.NDArray[np.bool_]:
        """Whether each one ends behind the start of the next one."""
        overlaps = np.zeros(len(self.bases), np.bool_)
        np.greater(self.nexts[:-1], self.bases[1:], out=overlaps[:-1])
        return overlaps

    def _contradicts_neighbours(self) -> npt.NDArray[np.bool_]:
        """Which one of each two that overlap is wrong: the second one, if no gap precedes the first one."""
        wrong = self.overlaps_next & ~self.contiguous
        wrong[1:] |= (self.overlaps_next & self.contiguous)[:-1]
        return wrong
