"""How fast records are processed and how fast they arrive, from the looks of the last minute. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from spark_group_source.lag.sample import Sample
from spark_group_source.offsets import Offsets

WINDOW = 60.0
"""Seconds that rates are averaged over: some batches of most queries, and soon right again after a change."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Offsets a second; ``None`` until there are two looks to compare."""

    processed: float | None = None
    arrived: float | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """What had been processed and had arrived at a time, counted from the first look on."""

    at: float
    processed: int = 0
    arrived: int = 0


class RateWindow:
    """Rates over the last ``seconds``; over the last two looks where they are further apart.

    Only partitions that both of two looks know are compared: one that was taken away or given brings no leap. An offset
    that went back (a rewind, a topic made anew) counts as no progress, not as a negative one.
    """

    def __init__(self, seconds: float = WINDOW) -> None:
        self._seconds = seconds
        self._marks: deque[_Mark] = deque()
        self._last: Sample | None = None

    def add(self, sample: Sample) -> Rates:
        """The rates with this look as the newest. One that is not later than the last one begins anew."""
        if self._last is None or sample.at <= self._last.at:
            self._marks = deque([_Mark(sample.at)])
        else:
            before = self._marks[-1]
            processed = before.processed + _advance(self._last.positions, sample.positions)
            arrived = before.arrived + _advance(self._last.ends, sample.ends)
            self._marks.append(_Mark(sample.at, processed, arrived))
        # An end that nobody told now is compared when it is known again: what arrived meanwhile counts then.
        before_ends = self._last.ends if self._last else {}
        kept = {tp: before_ends[tp] for tp in sample.unknown() if tp in before_ends}
        self._last = replace(sample, ends={**kept, **sample.ends})
        while len(self._marks) > 2 and self._marks[1].at <= sample.at - self._seconds:
            self._marks.popleft()
        first, last = self._marks[0], self._marks[-1]
        if first is last:
            return Rates()
        took = last.at - first.at
        return Rates((last.processed - first.processed) / took, (last.arrived - first.arrived) / took)


def _advance(before: Offsets, after: Offsets) -> int:
    return sum(max(0, after[tp] - before[tp]) for tp in before.keys() & after.keys())
