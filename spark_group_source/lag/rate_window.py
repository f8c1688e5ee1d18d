"""The rates between samples: offsets processed and arrived per second over the last minute. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from spark_group_source.lag.model import Rates, Sample
from spark_group_source.offsets import Offsets

WINDOW = 60.0
"""The seconds over which rates are averaged: long enough for several batches of most queries, and short enough to show
a change soon."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Offsets processed and arrived since the first sample."""

    at: float
    processed: int = 0
    arrived: int = 0


class RateWindow:
    """Rates over the last ``seconds``, or over the last two samples if they are further apart.

    Two samples are compared only in the partitions that both have, so an assigned or revoked partition causes no jump.
    An offset that decreases (a rewind, a recreated topic) counts as no progress, not as a negative rate.
    """

    def __init__(self, seconds: float = WINDOW) -> None:
        self._seconds = seconds
        self._totals: deque[_Totals] = deque()
        self._last: Sample | None = None

    def add(self, sample: Sample) -> Rates:
        """The rates up to this sample. A sample that is not later than the last one starts a new window."""
        last = self._last
        if last is None or sample.at <= last.at:
            self._totals = deque([_Totals(sample.at)])
        else:
            before = self._totals[-1]
            processed = before.processed + _increase(last.positions, sample.positions)
            arrived = before.arrived + _increase(last.ends, sample.ends)
            self._totals.append(_Totals(sample.at, processed, arrived))
        self._last = sample
        if last is not None:
            self._last = _with_known_ends(sample, last.ends)
        self._drop_older_than(sample.at - self._seconds)
        return self._rates()

    def _drop_older_than(self, at: float) -> None:
        """Drops the totals before this time, except for the last of them, at which the window begins."""
        while len(self._totals) > 2 and self._totals[1].at <= at:
            self._totals.popleft()

    def _rates(self) -> Rates:
        first, last = self._totals[0], self._totals[-1]
        if first is last:
            return Rates()
        seconds = last.at - first.at
        return Rates((last.processed - first.processed) / seconds, (last.arrived - first.arrived) / seconds)


def _increase(before: Offsets, after: Offsets) -> int:
    """The offsets between two samples, in the partitions that both have."""
    increase = 0
    for tp in before.keys() & after.keys():
        increase += max(0, after[tp] - before[tp])
    return increase


def _with_known_ends(sample: Sample, ends: Offsets) -> Sample:
    """The sample; a partition without an end offset gets the last known one from ``ends``.

    The records that arrive meanwhile therefore count as soon as the end offset is known again.
    """
    known = dict(sample.ends)
    for tp in sample.unknown():
        if tp in ends:
            known[tp] = ends[tp]
    return replace(sample, ends=known)
