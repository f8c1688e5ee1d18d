"""Tasks of the topic ``t``, and what they read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import UNKNOWN_EPOCH, OffsetRange
from spark_group_source.records.columns import arrow_schema
from tests.fake import FakeKafka
from tests.unit.wire_options import LONG, wire_options

WIRE = {"request_timeout", "metadata_max_age", "rack", "retry_backoff", "retry_backoff_max"}


def fill(fake: FakeKafka, *, batches: int = 4, rows: int = 5, size: int = 10, partition: int = 0) -> None:
    """Appends record batches, whose records have their offset as value."""
    for _ in range(batches):
        first = fake.logs["t"][partition].end
        fake.produce("t", [f"{first + each:0{size}d}" for each in range(rows)], partition=partition)


def task(
    fake: FakeKafka,
    *ranges: tuple[int, int, int],
    epoch: int = UNKNOWN_EPOCH,
    topic_id: str | None = None,
    query_id: str = "",
    **given: Any,
) -> FetchTask:
    """A task for (partition, start, end) of the topic, with long timeouts for slow machines."""
    of_wire = {"request_timeout": LONG, "retry_backoff_max": 0.02} | {
        key: given.pop(key) for key in WIRE & given.keys()
    }
    wire = wire_options(fake, **of_wire)
    id_ = str(fake.ids["t"]) if topic_id is None else topic_id
    wanted = tuple(OffsetRange("t", number, start, end, id_, epoch) for number, start, end in ranges)
    settings = FetchSettings(**{"max_wait": 0.01, "poll_timeout": LONG} | given)
    return FetchTask(wanted, wire, arrow_schema(["value", "partition", "offset"]), settings, query_id)


def offsets(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    """(Partition, offset) of each row, in order."""
    return [(row["partition"], row["offset"]) for each in batches for row in each.to_pylist()]


def fetched(fake: FakeKafka, *ranges: tuple[int, int, int], **given: Any) -> list[tuple[int, int]]:
    return offsets(read(task(fake, *ranges, **given)))


def of(number: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(number, offset) for offset in range(start, end)]


def unknown(answer: Any) -> None:
    """Edits a Metadata response: the broker does not know the topics."""
    for topic in answer.topics:
        topic.error_code, topic.partitions = 3, []


def aborted(answer: Any) -> None:
    """Edits a Fetch response: it has an aborted transaction."""
    part = answer.responses[0].partitions[0]
    part.aborted_transactions = [part.AbortedTransaction(version=13, producer_id=7, first_offset=0)]


def fetches(fake: FakeKafka, node: int | None = None) -> list[Any]:
    return [request for api, broker, request in fake.requests if api == "Fetch" and node in (None, broker)]
