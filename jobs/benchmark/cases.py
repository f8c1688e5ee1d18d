"""The cases: topics, and the queries that read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Any

JVM, GROUP = "kafka", "kafka-group"
QUICK_SHARE = 0.4
"""Fraction of the records that a quick run reads."""
MICRO_BATCH, MICRO_BATCHES = 1_000, 23
"""Records in a micro-batch, and micro-batches in a run."""
RECORDS_AFTER_END = 1_000
"""Records after the measured part of each partition. When the consumer of the JVM source has returned its last records,
it sends the next fetch. At the end offset the broker holds this fetch for ``fetch.max.wait.ms``, half a second, and the
next request waits for it. A run over a whole topic includes this delay, because users wait for it. A run that ends
before the end offset shows the other costs."""


class Sink(Enum):
    """The sink of a query."""

    NOOP = "noop"
    AGGREGATION = "aggregation"
    PARQUET = "parquet"


class Extent(Enum):
    """The part of the topic that a run reads, and the figure that it measures.

    ``WHOLE``: the topic up to its end offsets, with Trigger.AvailableNow; rows per second. ``INSIDE``: one batch of all
    but :data:`RECORDS_AFTER_END` records of each partition; rows per second. ``MICRO_BATCHES``: a number of
    micro-batches; the time of each. ``LATENCY``: records produced during the run; the time from produce to row.
    """

    WHOLE = "whole topic"
    INSIDE = "inside the log"
    MICRO_BATCHES = "micro-batches"
    LATENCY = "from produce to row"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its records.

    ``value_bytes`` is the size of each value. Without ``batched`` each record has its own record batch. A
    ``transactional`` topic is written in transactions and read with read_committed. In a ``compacted`` topic compaction
    has removed about a third of the records.
    """

    records: int
    value_bytes: int = 100
    codec: str = "none"
    partitions: int = 8
    headers: bool = False
    batched: bool = True
    transactional: bool = False
    compacted: bool = False

    @property
    def gaps(self) -> bool:
        """Whether some offsets have no row."""
        return self.transactional or self.compacted


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table; ``columns`` are the selected columns, empty for all."""

    name: str
    topic: Topic
    sink: Sink = Sink.NOOP
    columns: tuple[str, ...] = ()
    extent: Extent = Extent.WHOLE
    quick: bool = False

    @property
    def limit(self) -> int | None:
        """``maxOffsetsPerTrigger`` of the query."""
        topic = self.topic
        whole = topic.records - RECORDS_AFTER_END * topic.partitions
        return {Extent.INSIDE: whole, Extent.MICRO_BATCHES: MICRO_BATCH}.get(self.extent)


# The slower source reads this number of records in 2 to 4 s with two cores.
_PLAIN = Topic(4_000_000)
_SPREAD = replace(_PLAIN, partitions=100)


def _rates(name: str, topic: Topic, **more: Any) -> tuple[Case, Case]:
    """The case over the whole topic, and in one batch inside its log."""
    case = Case(name, topic, **more)
    return case, replace(case, name=f"{name}-inside", extent=Extent.INSIDE)


CASES = (
    *_rates("100B", _PLAIN, quick=True),
    Case("micro-batches-8", _PLAIN, extent=Extent.MICRO_BATCHES, quick=True),
    *_rates("aggregation", _PLAIN, sink=Sink.AGGREGATION),
    *_rates("parquet", _PLAIN, sink=Sink.PARQUET),
    *_rates("projection", _PLAIN, columns=("value", "offset")),
    *_rates("1kB", Topic(1_200_000, value_bytes=1_000), quick=True),
    *_rates("10kB", Topic(150_000, value_bytes=10_000)),
    *_rates("lz4", replace(_PLAIN, codec="lz4")),
    *_rates("zstd", replace(_PLAIN, codec="zstd")),
    *_rates("snappy", replace(_PLAIN, codec="snappy")),
    *_rates("gzip", replace(_PLAIN, codec="gzip")),
    *_rates("1-partition", replace(_PLAIN, records=2_000_000, partitions=1)),
    *_rates("100-partitions", _SPREAD),
    Case("micro-batches-100", _SPREAD, extent=Extent.MICRO_BATCHES, quick=True),
    *_rates("headers", Topic(2_000_000, headers=True)),
    *_rates("transactional", Topic(2_000_000, transactional=True)),
    *_rates("compacted", Topic(2_000_000, compacted=True)),
    Case("latency", Topic(16_000), extent=Extent.LATENCY, quick=True),
    *_rates("single-record-batches", Topic(600_000, batched=False)),
)
"""All cases; cases with the same topic are consecutive."""


def select_cases(names: list[str], quick: bool, share: float) -> list[list[Case]]:
    """The named cases, the quick ones or all, grouped by topic, with a fraction of its records."""
    selected = [case for case in CASES if (case.name in names if names else case.quick or not quick)]
    scaled = [replace(case, topic=_part(case.topic, share)) for case in selected]
    return [list(cases) for _, cases in groupby(scaled, key=lambda case: case.topic)]


def _part(topic: Topic, share: float) -> Topic:
    return replace(topic, records=max(int(topic.records * share), 2 * RECORDS_AFTER_END * topic.partitions))
