"""Positions and end offsets at one moment, rates, and the lag as a report. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_group_source.group.counters import Counters
from spark_group_source.offsets import BatchLimit, Offsets, TopicPartition
from spark_group_source.text import names


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: ``position`` is the next offset to process, ``end`` the next offset to write.

    ``end`` is the high watermark, or with ``read_committed`` the last stable offset. ``age`` is how many seconds ago
    the first record at or after ``position`` was written: 0 if no record is left before ``end``, ``None`` if it is
    unknown.
    """

    tp: TopicPartition
    position: int
    end: int
    age: float | None = None

    @property
    def lag(self) -> int:
        """Offsets left to process: at least the number of records. Never negative, even after a log truncation."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one lookup at time ``at``, in seconds since 1970.

    If a leader did not return the end offset of a partition, only ``positions`` has that partition, and its lag is
    unknown. ``ages`` leaves out partitions whose age is unknown.
    """

    at: float
    positions: Offsets
    ends: Offsets
    ages: Mapping[TopicPartition, float] = field(default_factory=dict)

    def partitions(self) -> tuple[PartitionLag, ...]:
        """The lag of each partition, sorted by topic and number."""
        known = sorted(self.positions.keys() & self.ends.keys())
        return tuple(PartitionLag(tp, self.positions[tp], self.ends[tp], self.ages.get(tp)) for tp in known)

    def total(self) -> int:
        """The sum of the known lags."""
        return sum(each.lag for each in self.partitions())

    def unknown(self) -> tuple[TopicPartition, ...]:
        """The partitions whose lag is unknown, sorted."""
        return tuple(sorted(self.positions.keys() - self.ends.keys()))


@dataclass(frozen=True, slots=True)
class Rates:
    """Offsets per second; ``None`` until two samples can be compared."""

    processed: float | None = None
    arrived: float | None = None


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a query's source.

    Attributes:
        query: the query's name, or its id if it has no name.
        run_id: the id of the run; each start of a query is a new run.
        at: the time of the figures, in seconds since 1970.
        partitions: the partitions whose lag is known, sorted by topic and number.
        source: the number of the source in the query's progress.
        group: the consumer group; ``None`` if neither a lag client looked it up nor the query's progress names it.
        unknown: the partitions whose lag is unknown, because no leader returned the end offset.
        counters: the counters of the query's membership up to the last batch; ``None`` before the first batch, and
            before PySpark 4.2.
        limit: the limit that decided the size of the last batch; ``None`` without an option that limits batches, and
            before PySpark 4.2.
    """

    query: str
    run_id: str
    at: float
    partitions: tuple[PartitionLag, ...]
    rates: Rates = field(default_factory=Rates)
    source: int = 0
    group: str | None = None
    unknown: tuple[TopicPartition, ...] = ()
    counters: Counters | None = field(default=None, hash=False)
    limit: BatchLimit | None = None

    @property
    def total(self) -> int:
        """Offsets left to process in all partitions. This is a lower bound if the lag of a partition is ``unknown``."""
        return sum(each.lag for each in self.partitions)

    @property
    def largest(self) -> PartitionLag | None:
        """The partition with the largest known lag; ``None`` if no lag is known."""
        return max(self.partitions, key=lambda each: each.lag, default=None)

    @property
    def oldest(self) -> PartitionLag | None:
        """The partition with the largest known age; ``None`` if no age is known: only a lag client looks up ages."""
        oldest, largest = None, -1.0
        for each in self.partitions:
            if each.age is not None and each.age > largest:
                oldest, largest = each, each.age
        return oldest

    @property
    def unknown_ages(self) -> tuple[TopicPartition, ...]:
        """The partitions whose age is unknown, sorted. They include the partitions whose lag is ``unknown``."""
        ages = [each.tp for each in self.partitions if each.age is None]
        return tuple(sorted([*ages, *self.unknown]))

    @property
    def catch_up(self) -> float | None:
        """Seconds until the lag is 0 at these rates: 0 without lag, infinite if the query does not catch up.

        ``None`` while the rates, or the lag of a partition, are unknown.
        """
        if self.unknown:
            return None
        if not self.total:
            return 0.0
        if self.rates.processed is None or self.rates.arrived is None:
            return None
        gain = self.rates.processed - self.rates.arrived
        if gain <= 0:
            return math.inf
        return self.total / gain

    def __str__(self) -> str:
        if not self.partitions and not self.unknown:
            return f"{self.query}: no partitions"
        lag = f"{self._lag_text()}{self._age_text()}"
        text = f"{self.query}: lag {lag}{_rates_text(self.rates)}{_catch_up_text(self.catch_up)}"
        if self.limit is not None:
            text += f", {self.limit}"
        return text

    def _lag_text(self) -> str:
        text = f"{self.total:,} in {len(self.partitions)} partition(s)"
        if self.unknown:
            text = f"at least {text}, unknown in {len(self.unknown)} ({names(self.unknown)})"
        largest = self.largest
        if largest is not None and largest.lag > 0:
            text += f", most in {largest.tp} ({largest.lag:,})"
        return text

    def _age_text(self) -> str:
        oldest = self.oldest
        if oldest is None or not oldest.age:
            return ""
        text = duration(oldest.age)
        if self.unknown_ages:
            text = f"at least {text}"
        return f", oldest record {text} old"


def _rates_text(rates: Rates) -> str:
    if rates.processed is None or rates.arrived is None:
        return ""
    return f", {rates.processed:,.0f}/s processed, {rates.arrived:,.0f}/s arrived"


def _catch_up_text(seconds: float | None) -> str:
    if seconds is None or seconds == 0:
        return ""
    if math.isinf(seconds):
        return ", not catching up"
    return f", caught up in {duration(seconds)}"


def duration(seconds: float) -> str:
    """Formats a duration: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"
