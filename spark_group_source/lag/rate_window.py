"""The rates between samples: offsets processed and arrived per second over the last minute. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from spark_group_source.lag.model import Rates, Sample
from spark_group_source.offsets import Offsets

WINDOW = 60.0
"""The time that rates are averaged over, in seconds: several batches of most queries, and short after a change."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Offsets processed and arrived since the first sample."""

    at: float
    processed: int = 0
    arrived: int = 0


class RateWindow:
    """Rates over the last ``seconds``, or over the last two samples if they are further apart.

    Two samples are compared only in the partitions of both, so an assigned or revoked partition causes no jump. An
    offset that decreased (a rewind, a recreated topic) counts as no progress, not as a negative rate.
    """

    def __init__(self, seconds: float = WINDOW) -> None:
        self._seconds = seconds
        self._totals: deque[_Totals] = deque()
        self._last: Sample | None = None

    def add(self, sample: Sample) -> Rates:
        """The rates up to this sample. A sample that is not later than the last one starts a new window."""
        if self._last is None or sample.at <= self._last.at:
            self._totals = deque([_Totals(sample.at)])
        else:
            before = self._totals[-1]
            processed = before.processed + _increase(self._last.positions, sample.positions)
            arrived = before.arrived + _increase(self._last.ends, sample.ends)
            self._totals.append(_Totals(sample.at, processed, arrived))
        # Unknown end offsets keep their last value, so that arrivals count when the end offset is known again.
        before_ends = self._last.ends if self._last else {}
        kept = {tp: before_ends[tp] for tp in sample.unknown() if tp in before_ends}
        self._last = replace(sample, ends={**kept, **sample.ends})
        while len(self._totals) > 2 and self._totals[1].at <= sample.at - self._seconds:
            self._totals.popleft()
        first, last = self._totals[0], self._totals[-1]
        if first is last:
            return Rates()
        seconds = last.at - first.at
        return Rates((last.processed - first.processed) / seconds, (last.arrived - first.arrived) / seconds)


def _increase(before: Offsets, after: Offsets) -> int:
    return sum(max(0, after[tp] - before[tp]) for tp in before.keys() & after.keys())
