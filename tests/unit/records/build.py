"""Builds record batches with kafka-python, and reads them with its reader, as the expected result of decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_group_source.offsets import TopicPartition
from spark_group_source.records.batches import PartitionRecords, find_record_batches
from spark_group_source.records.columns import ALL_COLUMNS
from spark_group_source.records.decode import Decoder

TP = TopicPartition("topic", 3)
FOREVER = 2**62
ATTRIBUTES_AT, CRC_AT, CRC_BEGIN, HEADER = 21, 17, 21, 61


class Row(NamedTuple):
    """One record, with its timestamp in milliseconds; ``headers`` is None without headers."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


class Record(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes | None]] = ()
    delta: int | None = None
    """Offset delta in the record batch, if compaction has left gaps."""


def batch(
    records: Iterable[Record],
    base_offset: int = 0,
    *,
    codec: int = 0,
    transactional: bool = False,
    producer: int = -1,
    attributes: int | None = None,
    last_delta: int | None = None,
) -> bytes:
    """A record batch at ``base_offset``; ``attributes`` replaces the attributes of kafka-python."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer, 0 if producer >= 0 else -1, 0, 2**30)
    for index, record in enumerate(records):
        delta = index if record.delta is None else record.delta
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    built = bytearray(builder.build())
    built[:8] = base_offset.to_bytes(8, "big")
    if last_delta is not None:
        built[23:27] = last_delta.to_bytes(4, "big")
    if attributes is not None:
        built[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
    return resealed(built)


def resealed(built: bytes | bytearray) -> bytes:
    """A record batch with the correct checksum."""
    batch = bytearray(built)
    batch[CRC_AT : CRC_AT + 4] = crc32c(bytes(batch[CRC_BEGIN:])).to_bytes(4, "big")
    return bytes(batch)


def framed(header: bytes, body: bytes, count: int | None = None) -> bytes:
    """A record batch with the header of another one, which claims to have ``count`` records."""
    built = bytearray(header[:HEADER])
    built[8:12] = (HEADER - 12 + len(body)).to_bytes(4, "big")
    if count is not None:
        built[57:61] = count.to_bytes(4, "big")
    return resealed(built + body)


def marker(base_offset: int, producer: int, commit: bool) -> bytes:
    """A control batch that ends a transaction."""
    key = (0).to_bytes(2, "big") + int(commit).to_bytes(2, "big")
    return batch([Record(bytes(6), key)], base_offset, producer=producer, attributes=0x30)


def part(
    raw: bytes | bytearray, start: int = 0, end: int = FOREVER, aborted: Sequence[tuple[int, int]] = ()
) -> PartitionRecords:
    """``raw`` as the records of the test's partition."""
    return PartitionRecords(find_record_batches(TP, memoryview(raw)), start, end, aborted)


def decoded(
    *parts: PartitionRecords, schema: pa.Schema = ALL_COLUMNS, read_committed: bool = False, **options: Any
) -> pa.Table:
    """All rows of ``parts``; Arrow validates each batch."""
    batches = list(Decoder(schema, read_committed=read_committed, **options).decode(parts))
    for each in batches:
        each.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def rows(table: pa.Table) -> list[Row]:
    # As numbers, because the range of Python's datetime is smaller than the range of Spark's timestamps.
    millis = pc.divide(table["timestamp"].cast(pa.int64()), 1000)
    found = []
    for row in table.set_column(table.schema.get_field_index("timestamp"), "timestamp", millis).to_pylist():
        headers = row["headers"] and [tuple(each.values()) for each in row["headers"]]
        found.append(Row(row["offset"], row["timestamp"], row["timestampType"], row["key"], row["value"], headers))
    return found


def rows_of_kafka_python(raw: bytes) -> list[Row]:
    return [
        Row(each.offset, each.timestamp, each.timestamp_type, each.key, each.value, list(each.headers) or None)
        for found in MemoryRecords(raw)
        if not found.is_control_batch
        for each in found
    ]
