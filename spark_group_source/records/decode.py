"""Decodes Fetch responses to Arrow record batches without a Python object per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from spark_group_source.records.batches import LOG_APPEND_TIME, PartitionRecords
from spark_group_source.records.boundaries import Longs
from spark_group_source.records.columns import ALL_COLUMNS, TEXT_COLUMNS
from spark_group_source.records.decode_units import DecodeUnit
from spark_group_source.records.fields import (
    KeyValueSlices,
    RecordFields,
    decode_headers,
    fixed_width_array,
    locate_fields,
)
from spark_group_source.records.responses import DecodeLimits, ResponseBatches

_MICROS_PER_MILLI = 1000
_MAX_MILLIS = np.iinfo(np.int64).max // _MICROS_PER_MILLI


class Decoder:
    """Decodes fetched records into the columns of one schema. Keeps nothing between calls; for one thread at a time.

    Args:
        schema: columns of :data:`columns.ALL_COLUMNS` and :data:`columns.TEXT_COLUMNS`, in any order.
        read_committed: leave out the records of aborted transactions.
        check_crcs: compare the checksum of every record batch that gives rows, like Java's ``check.crcs``.
        limits: limits on memory.
    """

    def __init__(
        self, schema: pa.Schema, *, read_committed: bool, check_crcs: bool = True, limits: DecodeLimits | None = None
    ) -> None:
        if not len(schema) or any(field not in ALL_COLUMNS and field not in TEXT_COLUMNS for field in schema):
            raise ValueError(f"not columns of a record: {schema}")
        self._schema = schema
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._limits = limits or DecodeLimits()
        # Decompressed records. Clearing and paging in fresh memory would take longer than copying them.
        self._scratch = self._limits.scratch()

    def decode(self, partitions: Sequence[PartitionRecords]) -> Iterator[pa.RecordBatch]:
        """The rows of ``partitions`` in order, by offset within each; nothing if no record is visible.

        Raises:
            CorruptRecords: bytes are damaged; the error names the partition and the record batch.
            UnsupportedRecords: an unknown codec, a record batch that decompresses to more than the limit, a timestamp
                beyond Spark's range, or invalid UTF-8 in a column requested as text.
        """
        batches = ResponseBatches(
            partitions,
            read_committed=self._read_committed,
            check_crcs=self._check_crcs,
            limits=self._limits,
            scratch=self._scratch,
        )
        for unit in batches.decode_units():
            for first in range(0, len(unit.starts), self._limits.rows):
                part = unit.rows(slice(first, first + self._limits.rows))
                for rows in self._limit_headers(part, _in_range(part, locate_fields(part))):
                    yield self._record_batch(part, rows)

    def _limit_headers(self, unit: DecodeUnit, rows: RecordFields) -> Iterator[RecordFields]:
        """All rows, in parts that have no more headers than the limit."""
        if "headers" not in self._schema.names:
            if len(rows.offset):
                yield rows
            return
        total, limit = np.cumsum(rows.header_count), self._limits.headers
        first = before = 0
        while first < len(total):
            end = int(np.searchsorted(total, before + limit, side="right"))
            if end == first:
                raise unit.batches.location(rows.batch[first]).unsupported(
                    f"has at offset {rows.offset[first]} a record with {rows.header_count[first]} headers, and the"
                    f" maximum is {limit}",
                    "Leave out the column headers, or start after this record.",
                )
            yield rows.rows(slice(first, end))
            first, before = end, int(total[end - 1])

    def _record_batch(self, unit: DecodeUnit, rows: RecordFields) -> pa.RecordBatch:
        slices = KeyValueSlices(unit.memory, rows.key_start, rows.key_length, rows.value_start, rows.value_length)
        build: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: self._binary_or_text(slices.keys(), "key", unit, rows),
            "value": lambda: self._binary_or_text(slices.values(), "value", unit, rows),
            "topic": lambda: _topic(unit, rows),
            "partition": lambda: _partition(unit, rows),
            "offset": lambda: fixed_width_array(rows.offset, pa.int64()),
            "timestamp": lambda: _timestamp(unit, rows),
            "timestampType": lambda: _timestamp_type(unit, rows),
            "headers": lambda: decode_headers(unit, rows),
        }
        return pa.RecordBatch.from_arrays([build[name]() for name in self._schema.names], schema=self._schema)

    def _binary_or_text(self, binary: pa.Array, column: str, unit: DecodeUnit, rows: RecordFields) -> pa.Array:
        if self._schema.field(column) in ALL_COLUMNS:
            return binary
        try:
            return binary.cast(pa.string())
        except pa.ArrowInvalid as error:
            row, reason = _first_invalid_text(binary)
            raise unit.batches.location(rows.batch[row]).unsupported(
                f"has at offset {rows.offset[row]} a {column} that is not UTF-8: {reason}",
                f"Request the column as binary: .schema('{column} binary, ...').",
            ) from error


def _first_invalid_text(binary: pa.Array) -> tuple[int, str]:
    """The first element that is not UTF-8, and the reason without its bytes, which Python's error would show."""
    for row, element in enumerate(binary):
        try:
            (element.as_py() or b"").decode()
        except UnicodeDecodeError as error:
            return row, f"{error.reason} at byte {error.start}"
    raise AssertionError("Arrow and Python define UTF-8 differently")


def _in_range(unit: DecodeUnit, rows: RecordFields) -> RecordFields:
    """The rows in the requested range; the first and last record batch of a partition may exceed it."""
    batches = unit.batches
    base_offsets = batches.headers["base_offset"].astype(np.int64)
    start = np.array([partition.start for partition in batches.partitions], np.int64)[batches.partition_of]
    end = np.array([partition.end for partition in batches.partitions], np.int64)[batches.partition_of]
    if (base_offsets >= start).all() and (base_offsets + batches.headers["last_offset_delta"] < end).all():
        return rows
    return rows.rows((rows.offset >= start[rows.batch]) & (rows.offset < end[rows.batch]))


def _topic(unit: DecodeUnit, rows: RecordFields) -> pa.Array:
    names, of_partition = np.unique([each.batches.tp.topic for each in unit.batches.partitions], return_inverse=True)
    if len(names) == 1:
        count = len(rows.offset)
        return _rows_of_topic(str(names[0]), (count - 1).bit_length())[:count]
    topics = pa.concat_arrays([_rows_of_topic(str(name), 0) for name in names])
    return topics.take(fixed_width_array(of_partition[unit.batches.partition_of[rows.batch]], pa.int64()))


@lru_cache(maxsize=2)
def _rows_of_topic(topic: str, exponent: int) -> pa.Array:
    """``2**exponent`` rows of one topic, kept for the next units: most have records of one topic only."""
    text, count = topic.encode(), 2**exponent  # not pa.repeat(), which imports pandas, as pa.array() does
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def _partition(unit: DecodeUnit, rows: RecordFields) -> pa.Array:
    numbers = np.array([partition.batches.tp.partition for partition in unit.batches.partitions], np.int32)
    return fixed_width_array(numbers[unit.batches.partition_of][rows.batch], pa.int32())


def _timestamp(unit: DecodeUnit, rows: RecordFields) -> pa.Array:
    """Microseconds: the record batch's maximum for log-append time, otherwise its first plus the record's delta."""
    headers = unit.batches.headers
    log_append = (headers["attributes"] & LOG_APPEND_TIME) != 0
    largest = headers["max_timestamp"].astype(np.int64)
    millis: Longs = np.where(log_append, largest, headers["first_timestamp"])[rows.batch]
    millis = millis + np.where(log_append[rows.batch], 0, rows.timestamp_delta)
    out_of_range = (millis > _MAX_MILLIS) | (millis < -_MAX_MILLIS)
    if out_of_range.any():
        row = int(np.argmax(out_of_range))
        raise unit.batches.location(rows.batch[row]).unsupported(
            f"has at offset {rows.offset[row]} a timestamp of {millis[row]} ms, which is beyond Spark's range",
            "Leave out the column timestamp with .schema(...), or start after this record.",
        )
    return fixed_width_array(millis * _MICROS_PER_MILLI, ALL_COLUMNS.field("timestamp").type)


def _timestamp_type(unit: DecodeUnit, rows: RecordFields) -> pa.Array:
    """0 for CreateTime (the producer's), 1 for LogAppendTime (the broker's)."""
    kinds = ((unit.batches.headers["attributes"] & LOG_APPEND_TIME) != 0).astype(np.int32)
    return fixed_width_array(kinds[rows.batch], pa.int32())
