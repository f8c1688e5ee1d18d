"""Positions and end offsets at one moment, the rates between such samples, and the lag as a report. Pure.

Spark's progress holds, for each source of a query, the offset at the end of the batch, in the JSON of
:class:`~spark_group_source.offsets.BatchOffset`. Since PySpark 4.2 it also holds the latest offset that the source
reported when it planned the batch (see :mod:`~spark_group_source.offsets`), for the partitions owned then. In
the progress of a Spark Connect client's query both are text that holds this JSON; in its events they are JSON.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.counters import Counters
from spark_group_source.offsets import BatchOffset, Offsets, TopicPartition, parse_latest_offset, parse_progress_offset
from spark_group_source.text import names


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: ``position`` is the next offset to process, ``end`` the next offset to write.

    ``end`` is the high watermark, or with ``read_committed`` the last stable offset.
    """

    tp: TopicPartition
    position: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets left to process: at least the number of records. Never negative, even after a log truncation."""
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one lookup at time ``at``, in seconds since 1970.

    If a leader did not return a partition's end offset, only ``positions`` has that partition: its lag is unknown.
    """

    at: float
    positions: Offsets
    ends: Offsets

    def partitions(self) -> tuple[PartitionLag, ...]:
        """The lag of each partition, sorted by topic and number."""
        known = sorted(self.positions.keys() & self.ends.keys())
        return tuple(PartitionLag(tp, self.positions[tp], self.ends[tp]) for tp in known)

    def unknown(self) -> tuple[TopicPartition, ...]:
        """The partitions whose lag is unknown, sorted."""
        return tuple(sorted(self.positions.keys() - self.ends.keys()))


WINDOW = 60.0
"""The time that rates are averaged over, in seconds: several batches of most queries, and short after a change."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Offsets per second; ``None`` until two samples can be compared."""

    processed: float | None = None
    arrived: float | None = None


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


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of a query's source.

    Attributes:
        query: the query's name, or its id if it has no name.
        run_id: the id of the run; each start of a query is a new run.
        at: the time of the figures, in seconds since 1970.
        partitions: the partitions whose lag is known, sorted by topic and number.
        source: the number of the source in the query's progress.
        group: the consumer group if a lag client looked it up; ``None`` if the figures come from the query's progress.
        unknown: the partitions whose lag is unknown, because no leader returned the end offset.
        counters: what happened to the query's membership, up to the last batch; ``None`` before it, and on PySpark 4.1.
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

    @property
    def total(self) -> int:
        """Offsets left to process in all partitions: a minimum if the lag of a partition is ``unknown``."""
        return sum(each.lag for each in self.partitions)

    @property
    def largest(self) -> PartitionLag | None:
        """The partition with the largest known lag; ``None`` if no lag is known."""
        return max(self.partitions, key=lambda each: each.lag, default=None)

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
        return self.total / gain if gain > 0 else math.inf

    def __str__(self) -> str:
        largest = self.largest
        if largest is None and not self.unknown:
            return f"{self.query}: no partitions"
        text = f"{self.query}: lag {'at least ' * bool(self.unknown)}{self.total:,}"
        text += f" in {len(self.partitions)} partition(s)"
        if self.unknown:
            text += f", unknown in {len(self.unknown)} ({names(self.unknown)})"
        if largest is not None and largest.lag:
            text += f", most in {largest.tp} ({largest.lag:,})"
        if self.rates.processed is not None and self.rates.arrived is not None:
            text += f", {self.rates.processed:,.0f}/s processed, {self.rates.arrived:,.0f}/s arrived"
        return text + _catch_up_text(self.catch_up)


def _catch_up_text(seconds: float | None) -> str:
    if not seconds:
        return ""
    return ", not catching up" if math.isinf(seconds) else f", caught up in {duration(seconds)}"


def duration(seconds: float) -> str:
    """Formats a duration: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    for unit, size, limit in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < size * limit:
            return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.1f} d"


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source of this package in one batch.

    ``end_offsets`` and ``counters`` are ``None`` if Spark does not show them (PySpark 4.1). ``owned`` are the
    partitions whose position is in ``batch``: its offset also names partitions that other members own now.
    """

    batch: BatchOffset
    end_offsets: Offsets | None
    owned: frozenset[TopicPartition]
    counters: Counters | None = None

    def sample(self, at: float) -> Sample:
        """The positions and end offsets of the owned partitions after the batch."""
        positions = self.batch.ends()
        return Sample(at, {tp: positions[tp] for tp in self.owned}, self.end_offsets or {})


def source_progress(progress: Mapping[str, Any], before: Mapping[int, SourceProgress]) -> dict[int, SourceProgress]:
    """The sources of this package in a progress, by their number. ``progress`` is parsed from its JSON.

    ``before`` is the result for the previous progress, empty for the first.
    """
    sources = {}
    for number, source in enumerate(progress.get("sources", ())):
        batch = _batch_offset(parse_progress_offset(source.get("endOffset")))
        if batch is None:
            continue
        end_offsets, counters = _reported(parse_progress_offset(source.get("latestOffset")))
        owned = frozenset(batch.ranges) & (end_offsets or {}).keys()
        if source.get("startOffset") == source["endOffset"] and number in before:
            # This source had no records for the batch, so the offset has no new position for partitions that came back.
            owned &= before[number].owned
        sources[number] = SourceProgress(batch, end_offsets, owned, counters)
    return sources


def epoch_seconds(timestamp: str) -> float:
    """Converts a timestamp of Spark's events, such as ``2026-01-31T12:00:00.000Z``, to seconds since 1970."""
    return datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()


def _batch_offset(offset: object) -> BatchOffset | None:
    """The offset of a batch, or ``None`` if another source wrote it."""
    if not isinstance(offset, Mapping) or not offset:
        return None
    try:
        return BatchOffset.from_json(offset)
    except GroupSourceError:
        return None


def _reported(latest: object) -> tuple[Offsets | None, Counters | None]:
    """The end offsets and counters, or ``None``: PySpark 4.1 shows the end of the batch instead."""
    if not isinstance(latest, Mapping) or _batch_offset(latest) is not None:
        return None, None
    end_offsets, counts = parse_latest_offset(latest)
    if counts is None:
        return end_offsets, None
    # A Spark Connect server may have another release of this package, with other counters.
    known = {each.name for each in fields(Counters)}
    return end_offsets, Counters(**{name: int(count) for name, count in counts.items() if name in known})


Key = tuple[int, TopicPartition]
"""A source's number in the query, and one of its partitions."""


class Backlog:
    """The backlog of one run, in offsets.

    In each partition the backlog starts where the first batch seen of it starts, and ends at the end offset of that
    time. It excludes later records, as an AvailableNow run does. A rebalance removes revoked partitions from the
    query's backlog, and adds assigned partitions.
    """

    def __init__(self) -> None:
        self._starts: dict[Key, int] = {}
        self._targets: dict[Key, int] = {}
        self._positions: dict[Key, int] = {}

    @property
    def total(self) -> int | None:
        """The size of the backlog; ``None`` before the first batch."""
        return sum(end - self._starts[key] for key, end in self._targets.items()) if self._targets else None

    @property
    def done(self) -> int:
        """The processed part of the backlog."""
        return sum(min(at, self._targets[key]) - self._starts[key] for key, at in self._positions.items())

    def update(self, progress: Mapping[str, Any]) -> None:
        """Adds the progress of a batch, parsed from its JSON. Batches may be skipped."""
        for number, source in source_progress(progress, {}).items():
            owned = self._update_owned(number, source)
            for key in [each for each in self._targets if each[0] == number and each not in owned]:
                self._targets[key] = self._positions[key]

    def _update_owned(self, number: int, source: SourceProgress) -> set[Key]:
        """Updates the partitions that the query owns, and returns them.

        Without end offsets (PySpark 4.1) these are all partitions that the query has ever read.
        """
        owned = set()
        for tp, offsets in source.batch.ranges.items():
            if source.end_offsets is not None and tp not in source.end_offsets:
                continue
            key = number, tp
            owned.add(key)
            start = self._starts.setdefault(key, offsets.start)
            end_offsets = source.end_offsets or {}
            self._targets.setdefault(key, max(end_offsets.get(tp, offsets.end), offsets.end, start))
            self._positions[key] = max(offsets.end, start)
        return owned
