"""The cases: topics, and the queries that read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Any

JVM, TUNED, GROUP, MEMORY = "kafka", "kafka-tuned", "kafka-group", "rows-from-memory"
"""The sources: Spark's own as it comes and as some of its users tune it, this one, and the ceiling of a Python source,
which reads no Kafka."""
DISTANCES_MS = (0, 10, 50)
"""Round trips to the broker in milliseconds. At 0 the proxy delays nothing: its copies cost all distances the same."""
SHARE_AT_A_DISTANCE, JVM_SHARE_AT_A_DISTANCE = 0.3, 0.05
"""Fraction of the records that is read at a distance, and that Spark's own source reads as it comes: all would take
many minutes."""
QUICK_SHARE = 0.4
"""Fraction of the records that a quick run reads."""
MICRO_BATCH, MICRO_BATCHES = 1_000, 23
"""Records in a micro-batch, at least one of each partition, and micro-batches in a run."""
RECORDS_AFTER_END = 1_000
"""Records after the measured part of each partition. When the consumer of the JVM source has returned its last records,
it sends the next fetch. At the end offset the broker holds this fetch for ``fetch.max.wait.ms``, half a second, and the
next request waits for it. A run over a whole topic includes this delay, because users wait for it. A run that ends
before the end offset shows the other costs."""

LARGE_EVERY = 100
"""One value in this number is large, in a topic with large values."""


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

    ``value_bytes`` is the size of each value, or with ``skewed`` the mean of sizes of all magnitudes. If
    ``large_value_bytes`` is not 0, one value in :data:`LARGE_EVERY` has this size. ``batch_bytes`` is the
    ``batch.size`` of a producer with time to fill record batches; None is the default, 16 kB. The producer changes the
    partition after this number of bytes before compression, so compressed record batches are smaller. Without
    ``batched`` each record has its own record batch. A ``transactional`` topic is written in transactions and read with
    read_committed. In a ``compacted`` topic compaction has removed about a third of the records.
    """

    records: int
    value_bytes: int = 100
    large_value_bytes: int = 0
    skewed: bool = False
    batch_bytes: int | None = None
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

    @property
    def mean_value_bytes(self) -> int:
        """The mean size of a value."""
        if not self.large_value_bytes:
            return self.value_bytes
        return self.value_bytes + (self.large_value_bytes - self.value_bytes) // LARGE_EVERY


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table; ``columns`` are the selected columns, empty for all.

    ``without_jvm``: the JVM source only takes part in the check of the rows, because its runs would take many minutes.
    ``distance_ms``: the round trip to the broker in milliseconds; None without a proxy.
    """

    name: str
    topic: Topic
    sink: Sink = Sink.NOOP
    columns: tuple[str, ...] = ()
    extent: Extent = Extent.WHOLE
    without_jvm: bool = False
    quick: bool = False
    distance_ms: int | None = None

    def limit(self, source: str) -> int | None:
        """``maxOffsetsPerTrigger`` of the query of a source."""
        topic = self.topic
        if self.extent is Extent.MICRO_BATCHES:
            return max(MICRO_BATCH, topic.partitions)
        if self.extent is not Extent.INSIDE:
            return None
        whole = topic.records - RECORDS_AFTER_END * topic.partitions
        if not self.distance_ms:
            return whole
        share = JVM_SHARE_AT_A_DISTANCE if source == JVM else SHARE_AT_A_DISTANCE
        return int(whole * share)

    @property
    def has_ceiling(self) -> bool:
        """Whether the ceiling is measured, too. A whole topic has the same ceiling as the part of it inside the log."""
        return self.extent is Extent.INSIDE and self.distance_ms is None


# The slower source reads this number of records in 2 to 4 s with two cores.
_PLAIN = Topic(4_000_000)
_SPREAD = replace(_PLAIN, partitions=100)
_SPREAD_1_KB = Topic(300_000, value_bytes=1_000, partitions=100)
_16_KB, _128_KB, _256_KB, _1_MB = 2**14, 2**17, 2**18, 2**20
_FILLED = replace(_PLAIN, partitions=4, batch_bytes=_256_KB)
_FILLED_1_KB = Topic(1_200_000, value_bytes=1_000, partitions=4, batch_bytes=_256_KB)
_FILLED_10_KB = Topic(150_000, value_bytes=10_000, partitions=4, batch_bytes=_256_KB)
_FILLED_MIXED = replace(_FILLED, records=3_000_000, large_value_bytes=10_000)


def _rates(name: str, topic: Topic, **more: Any) -> tuple[Case, Case]:
    """The case over the whole topic, and in one batch inside its log."""
    case = Case(name, topic, **more)
    return case, _inside(name, topic, **more)


def _inside(name: str, topic: Topic, **more: Any) -> Case:
    return Case(f"{name}-inside", topic, extent=Extent.INSIDE, **more)


def _distant(name: str, topic: Topic, extent: Extent = Extent.INSIDE) -> list[Case]:
    """The case at each distance."""
    return [Case(f"{name}-{each}ms", topic, extent=extent, distance_ms=each) for each in DISTANCES_MS]


def _many(partitions: int) -> Topic:
    """A topic with enough records for micro-batches of one record of each partition, in record batches of one record.

    A producer that fills record batches would leave most partitions empty.
    """
    return Topic(2 * MICRO_BATCHES * partitions, partitions=partitions, batched=False)


CASES = (
    *_rates("100B", _PLAIN, quick=True),
    Case("micro-batches-8", _PLAIN, extent=Extent.MICRO_BATCHES, quick=True),
    *_distant("micro-batches-8", _PLAIN, Extent.MICRO_BATCHES),
    *_rates("aggregation", _PLAIN, sink=Sink.AGGREGATION),
    *_rates("parquet", _PLAIN, sink=Sink.PARQUET),
    *_rates("projection", _PLAIN, columns=("value", "offset")),
    *_rates("1kB", Topic(1_200_000, value_bytes=1_000), quick=True),
    *_rates("10kB", Topic(150_000, value_bytes=10_000)),
    *_rates("100B-256kB", _FILLED),
    *_distant("100B-256kB", _FILLED),
    *_rates("aggregation-256kB", _FILLED, sink=Sink.AGGREGATION),
    *_rates("1kB-256kB", _FILLED_1_KB),
    *_rates("10kB-256kB", _FILLED_10_KB),
    *_distant("10kB-256kB", _FILLED_10_KB),
    *_rates("lz4-256kB", replace(_FILLED, codec="lz4")),
    *_rates("zstd-256kB", replace(_FILLED, codec="zstd")),
    _inside("mixed-256kB", _FILLED_MIXED),
    _inside("100B-16kB", replace(_FILLED, batch_bytes=_16_KB)),
    _inside("100B-1MB", replace(_FILLED, batch_bytes=_1_MB)),
    _inside("1kB-1MB", replace(_FILLED_1_KB, batch_bytes=_1_MB)),
    _inside("skewed-128kB", replace(_FILLED_1_KB, skewed=True, batch_bytes=_128_KB)),
    _inside("10kB-128kB", replace(_FILLED_10_KB, batch_bytes=_128_KB)),
    _inside("10kB-1MB", replace(_FILLED_10_KB, batch_bytes=_1_MB)),
    *_rates("lz4", replace(_PLAIN, codec="lz4")),
    *_rates("zstd", replace(_PLAIN, codec="zstd")),
    *_rates("snappy", replace(_PLAIN, codec="snappy")),
    *_rates("gzip", replace(_PLAIN, codec="gzip")),
    *_rates("1-partition", replace(_PLAIN, records=2_000_000, partitions=1)),
    *_rates("100-partitions", _SPREAD),
    Case("micro-batches-100", _SPREAD, extent=Extent.MICRO_BATCHES, quick=True),
    Case("micro-batches-100-1kB", _SPREAD_1_KB, extent=Extent.MICRO_BATCHES),
    Case("micro-batches-1000", _many(1_000), extent=Extent.MICRO_BATCHES, without_jvm=True),
    Case("micro-batches-5000", _many(5_000), extent=Extent.MICRO_BATCHES, without_jvm=True),
    *_rates("headers", Topic(2_000_000, headers=True)),
    *_rates("transactional", Topic(2_000_000, transactional=True)),
    *_rates("compacted", Topic(2_000_000, compacted=True)),
    Case("latency", Topic(16_000), extent=Extent.LATENCY, quick=True),
    *_rates("single-record-batches", Topic(600_000, batched=False)),
)
"""All cases; cases with the same topic are consecutive."""


def select_cases(names: list[str], quick: bool, share: float) -> list[list[Case]]:
    """The named cases, the quick ones or all, grouped by topic, with a fraction of its records."""
    scaled = []
    for case in CASES:
        if _is_selected(case, names, quick):
            scaled.append(replace(case, topic=_part(case.topic, share)))
    return [list(cases) for _, cases in groupby(scaled, key=lambda case: case.topic)]


def _is_selected(case: Case, names: list[str], quick: bool) -> bool:
    if names:
        return case.name in names
    return case.quick or not quick


def _part(topic: Topic, share: float) -> Topic:
    least = min(2 * RECORDS_AFTER_END * topic.partitions, topic.records)
    return replace(topic, records=max(int(topic.records * share), least))
