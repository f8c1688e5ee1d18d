"""What is measured: topics, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

JVM, GROUP = "kafka", "kafka-group"
QUICK_SHARE = 0.4
"""Part of the records that a quick run reads."""


class Sink(Enum):
    """Where the rows go."""

    NOOP = "noop"
    AGGREGATION = "aggregation"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Topic:
    """Records of a topic. ``value_bytes`` is the size of each value; ``batched`` false: a record batch for each."""

    records: int
    value_bytes: int = 100
    codec: str = "none"
    partitions: int = 8
    headers: bool = False
    batched: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table.

    ``columns`` are what the query selects, none for all of them; ``batch`` is ``maxOffsetsPerTrigger``: with it the
    time of a micro-batch is measured, without it the rows per second of the whole topic in one batch.
    """

    name: str
    topic: Topic
    sink: Sink = Sink.NOOP
    columns: tuple[str, ...] = ()
    batch: int | None = None
    quick: bool = False


# As many records as the slower source reads in 2 to 4 s with two cores.
_PLAIN = Topic(3_000_000)
_SMALL = Topic(20_000)

CASES = (
    Case("100B", _PLAIN, quick=True),
    Case("aggregation", _PLAIN, Sink.AGGREGATION),
    Case("parquet", _PLAIN, Sink.PARQUET),
    Case("projection", _PLAIN, columns=("value", "offset")),
    Case("1kB", Topic(1_000_000, value_bytes=1_000), quick=True),
    Case("10kB", Topic(120_000, value_bytes=10_000)),
    Case("lz4", replace(_PLAIN, codec="lz4")),
    Case("zstd", replace(_PLAIN, codec="zstd"), quick=True),
    Case("snappy", replace(_PLAIN, codec="snappy")),
    Case("gzip", replace(_PLAIN, codec="gzip")),
    Case("1-partition", replace(_PLAIN, records=1_500_000, partitions=1)),
    Case("100-partitions", replace(_PLAIN, partitions=100)),
    Case("headers", Topic(1_500_000, headers=True)),
    Case("single-record-batches", Topic(600_000, batched=False)),
    Case("micro-batches-8", _SMALL, batch=1_000, quick=True),
    Case("micro-batches-100", replace(_SMALL, partitions=100), batch=1_000, quick=True),
)
"""All cases; those that share a topic stand together."""


def chosen(names: list[str], quick: bool, share: float) -> list[list[Case]]:
    """The named cases, or the quick ones, or all, in lists of those that share a topic.

    ``share`` is the part of the records to read. Micro-batches are not made fewer: their number makes the median.
    """
    picked = [case for case in CASES if (case.name in names if names else case.quick or not quick)]
    scaled = [case if case.batch else replace(case, topic=_part(case.topic, share)) for case in picked]
    return [list(cases) for _, cases in groupby(scaled, key=lambda case: case.topic)]


def _part(topic: Topic, share: float) -> Topic:
    return replace(topic, records=max(int(topic.records * share), 1))
