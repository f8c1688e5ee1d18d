"""What is told about one query's source, or about a group, at one moment. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from spark_group_source.lag.rates import Rates
from spark_group_source.lag.sample import PartitionLag
from spark_group_source.listing import names
from spark_group_source.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a query's source.

    Attributes:
        query: the query's name, or its id where it has none.
        run_id: of the run; each start of a query is another one.
        source: number of the source within the query, as in its progress.
        group: the consumer group, where lag was looked up in the group; ``None`` where it is what the progress tells.
        at: when it was so, in seconds since 1970.
        partitions: those whose lag is known, sorted by topic and number.
        unknown: those whose lag is unknown, because no leader told the end of the log.
    """

    query: str
    run_id: str
    at: float
    partitions: tuple[PartitionLag, ...]
    rates: Rates = field(default_factory=Rates)
    source: int = 0
    group: str | None = None
    unknown: tuple[TopicPartition, ...] = ()

    @property
    def total(self) -> int:
        """Offsets still to be processed, in all partitions; with ``unknown`` ones it is at least that many."""
        return sum(each.lag for each in self.partitions)

    @property
    def largest(self) -> PartitionLag | None:
        """The partition that is furthest behind, of those known; ``None`` if there are none."""
        return max(self.partitions, key=lambda each: each.lag, default=None)

    @property
    def catch_up(self) -> float | None:
        """Seconds until nothing is left at these rates: infinite where records arrive as fast as they are processed.

        ``None`` while the rates are not known, or the lag of a partition.
        """
        if self.unknown:
            return None
        if not self.total:
            return 0.0
        if self.rates.processed is None or self.rates.arrived is None:
            return None
        gain = self.rates.processed - self.rates.arrived
        return self.total / gain if gain > 0 else math.inf

    def __str__(self) -> str:
        worst = self.largest
        if worst is None and not self.unknown:
            return f"{self.query}: no partitions"
        text = f"{self.query}: lag {'at least ' * bool(self.unknown)}{self.total:,}"
        text += f" in {len(self.partitions)} partition(s)"
        if self.unknown:
            text += f", unknown in {len(self.unknown)} ({names(self.unknown)})"
        if worst is not None and worst.lag:
            text += f", most in {worst.tp} ({worst.lag:,})"
        if self.rates.processed is not None and self.rates.arrived is not None:
            text += f", {self.rates.processed:,.0f}/s processed, {self.rates.arrived:,.0f}/s arrived"
        return text + _when(self.catch_up)


def _when(seconds: float | None) -> str:
    if not seconds:
        return ""
    return ", not catching up" if math.isinf(seconds) else f", caught up in {duration(seconds)}"


def duration(seconds: float) -> str:
    """For people: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    for unit, size, until in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < size * until:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.1f} d"
