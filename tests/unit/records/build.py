"""Record batches made by kafka-python, and what its own reader gives of them: what decoding is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_group_source.offsets import TopicPartition
from spark_group_source.records.columns import ALL_COLUMNS
from spark_group_source.records.decode import Decoder
from spark_group_source.records.record_batches import PartitionRecords, find_record_batches

TP = TopicPartition("topic", 3)
FOREVER = 2**62
ATTRIBUTES_AT, CRC_AT, CRC_BEGIN = 21, 17, 21


class Row(NamedTuple):
    """One record, with its timestamp in milliseconds; ``headers`` is None where there are none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


class Record(NamedTuple):
    """What goes into a batch."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes | None]] = ()
    delta: int | None = None
    """Offset in the batch, where compaction has left gaps."""


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
    """A batch at ``base_offset``; ``attributes`` are set over those that kafka-python would write."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, producer, 0 if producer >= 0 else -1, 0, 2**30)
    for index, each in enumerate(records):
        delta = index if each.delta is None else each.delta
        builder.append(delta, each.timestamp, each.key, each.value, list(each.headers))
    built = bytearray(builder.build())
    built[:8] = base_offset.to_bytes(8, "big")
    if last_delta is not None:
        built[23:27] = last_delta.to_bytes(4, "big")
    if attributes is not None:
        built[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = attributes.to_bytes(2, "big")
    return resealed(built)


def resealed(built: bytes | bytearray) -> bytes:
    """A batch with the checksum that it should have."""
    found = bytearray(built)
    found[CRC_AT : CRC_AT + 4] = crc32c(bytes(found[CRC_BEGIN:])).to_bytes(4, "big")
    return bytes(found)


def marker(base_offset: int, producer: int, commit: bool) -> bytes:
    """A control batch that ends a transaction."""
    key = (0).to_bytes(2, "big") + int(commit).to_bytes(2, "big")
    return batch([Record(bytes(6), key)], base_offset, producer=producer, attributes=0x30)


def part(
    raw: bytes | bytearray, start: int = 0, end: int = FOREVER, aborted: Sequence[tuple[int, int]] = ()
) -> PartitionRecords:
    """``raw`` as a slice of the test's partition."""
    return PartitionRecords(find_record_batches(TP, memoryview(raw)), start, end, aborted)


def decoded(
    *parts: PartitionRecords, schema: pa.Schema = ALL_COLUMNS, read_committed: bool = False, **options: Any
) -> pa.Table:
    """All rows of ``parts``, each batch validated by Arrow."""
    batches = list(Decoder(schema, read_committed=read_committed, **options).decode(parts))
    for each in batches:
        each.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def rows(table: pa.Table) -> list[Row]:
    """The rows of a table with all columns."""
    # As numbers: Python's datetime ends before Spark's timestamps do.
    millis = pc.divide(table["timestamp"].cast(pa.int64()), 1000)
    return [
        Row(
            each["offset"],
            each["timestamp"],
            each["timestampType"],
            each["key"],
            each["value"],
            None if each["headers"] is None else [(header["key"], header["value"]) for header in each["headers"]],
        )
        for each in table.set_column(table.schema.get_field_index("timestamp"), "timestamp", millis).to_pylist()
    ]


def rows_of_kafka_python(raw: bytes) -> list[Row]:
    """What kafka-python's reader makes of ``raw``."""
    return [
        Row(each.offset, each.timestamp, each.timestamp_type, each.key, each.value, list(each.headers) or None)
        for found in MemoryRecords(raw)
        if not found.is_control_batch
        for each in found
    ]
