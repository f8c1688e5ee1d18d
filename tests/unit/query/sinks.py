"""Simulated sinks: how long a batch takes, and a query that limits its batches by that."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_group_source.query.pace import MeasuredBatch, first_pace, next_pace

WITHIN = 0.25


@dataclass
class Sink:
    """A sink with a constant cost for each batch, and one for each offset, in seconds. Both vary by ``jitter``, the
    standard deviation of their logarithm."""

    per_offset: float
    per_batch: float = 0.5
    jitter: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def seconds(self, offsets: int) -> float:
        return self._vary(self.per_batch) + self._vary(self.per_offset * offsets)

    def _vary(self, seconds: float) -> float:
        return seconds * math.exp(self.chance.gauss(0, self.jitter))

    def best_rate(self, target: float) -> float:
        """Offsets per second with the fixed limit whose batches take the target."""
        return (target - self.per_batch) / self.per_offset / target


@dataclass
class Run:
    """The batches of one query."""

    target: float
    batches: list[MeasuredBatch]

    @property
    def seconds(self) -> list[float]:
        return [batch.seconds for batch in self.batches]

    @property
    def batches_before_target(self) -> int:
        """How many batches there are before the first that takes the target within a quarter."""
        return next(number for number, each in enumerate(self.seconds) if abs(each / self.target - 1) <= WITHIN)

    @property
    def deviation(self) -> float:
        """The standard deviation from there on, without the last batch, which reads the rest."""
        return statistics.pstdev(self.seconds[self.batches_before_target : -1])

    @property
    def rate(self) -> float:
        return sum(batch.offsets for batch in self.batches) / sum(self.seconds)

    def longer_than_twice(self) -> int:
        return sum(each > 2 * self.target for each in self.seconds)


def read(target: float, sink: Sink, backlog: int, meanwhile: Callable[[int], None] = lambda number: None) -> Run:
    """Reads a backlog of one partition; ``meanwhile`` is called before each batch with its number."""
    pace = first_pace(target)
    batches: list[MeasuredBatch] = []
    while backlog:
        meanwhile(len(batches))
        offsets = min(pace.offsets, backlog)
        backlog -= offsets
        batches.append(MeasuredBatch(offsets, offsets, sink.seconds(offsets)))
        pace = next_pace(pace, target, batches[-1])
    return Run(target, batches)


def keep_reading(target: float, sink: Sink, count: int, meanwhile: Callable[[int], None] = lambda number: None) -> Run:
    """Reads ``count`` batches of a backlog without an end."""
    pace = first_pace(target)
    batches: list[MeasuredBatch] = []
    for number in range(count):
        meanwhile(number)
        batches.append(MeasuredBatch(pace.offsets, pace.offsets, sink.seconds(pace.offsets)))
        pace = next_pace(pace, target, batches[-1])
    return Run(target, batches)
