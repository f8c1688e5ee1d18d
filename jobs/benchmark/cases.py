"""What is measured: topics, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Any

JVM, GROUP = "kafka", "kafka-group"
QUICK_SHARE = 0.4
"""Part of the records that a quick run reads."""
MICRO_BATCH, MICRO_BATCHES = 1_000, 23
"""Records of a micro-batch, and how many of them a run has."""
BEHIND = 1_000
"""Records that each partition has behind what is measured. The JVM source's consumer, given 500 records a poll, asks
the broker for more as soon as it has handed out the last; at the end of the log the broker holds that request back for
``fetch.max.wait.ms``, half a second, and what the source asks next waits behind it. A run over a whole topic has that
in it, as it is what users wait for; one that ends inside the log shows what else there is."""


class Sink(Enum):
    """Where the rows go."""

    NOOP = "noop"
    AGGREGATION = "aggregation"
    PARQUET = "parquet"


class Extent(Enum):
    """What of the topic a run reads.

    ``WHOLE``: the topic to the end of its log, with Trigger.AvailableNow, for rows per second. ``INSIDE``: the same in
    one batch of all but :data:`BEHIND` records of each partition. ``MICRO_BATCHES``: so many micro-batches, for the
    time of each. ``LATENCY``: what is produced meanwhile, for the time from produce to row.
    """

    WHOLE = "whole topic"
    INSIDE = "inside the log"
    MICRO_BATCHES = "micro-batches"
    LATENCY = "from produce to row"


@dataclass(frozen=True, slots=True)
class Topic:
    """Records of a topic.

    ``value_bytes`` is the size of each value; ``batched`` false: a record batch for each; ``transactional``: written in
    transactions and read with read_committed; ``compacted``: about a third of the records are gone, here and there.
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
        """Whether there are offsets without a row."""
        return self.transactional or self.compacted


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table; ``columns`` are what the query selects, none for all of them."""

    name: str
    topic: Topic
    sink: Sink = Sink.NOOP
    columns: tuple[str, ...] = ()
    extent: Extent = Extent.WHOLE
    quick: bool = False

    @property
    def limit(self) -> int | None:
        """``maxOffsetsPerTrigger``."""
        topic = self.topic
        whole = topic.records - BEHIND * topic.partitions
        return {Extent.INSIDE: whole, Extent.MICRO_BATCHES: MICRO_BATCH}.get(self.extent)


# As many records as the slower source reads in 2 to 4 s with two cores.
_PLAIN = Topic(4_000_000)
_SPREAD = replace(_PLAIN, partitions=100)


def _rates(name: str, topic: Topic, **more: Any) -> tuple[Case, Case]:
    """The case over the whole topic and inside its log."""
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
"""All cases; those that share a topic stand together."""


def chosen(names: list[str], quick: bool, share: float) -> list[list[Case]]:
    """The named cases, or the quick ones, or all, in lists of those that share a topic, with part of its records."""
    picked = [case for case in CASES if (case.name in names if names else case.quick or not quick)]
    scaled = [replace(case, topic=_part(case.topic, share)) for case in picked]
    return [list(cases) for _, cases in groupby(scaled, key=lambda case: case.topic)]


def _part(topic: Topic, share: float) -> Topic:
    return replace(topic, records=max(int(topic.records * share), 2 * BEHIND * topic.partitions))
