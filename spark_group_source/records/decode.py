"""Fetch responses to Arrow record batches: the fast path from bytes to columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_group_source.records.arrays import Pairs, numbers, repeated
from spark_group_source.records.batches import Batches, Limits
from spark_group_source.records.chunks import Chunk
from spark_group_source.records.columns import ALL, TEXTS
from spark_group_source.records.fields import Fields, fields
from spark_group_source.records.frames import LOG_APPEND_TIME, Slice
from spark_group_source.records.headers import headers
from spark_group_source.records.varints import Longs

_MICROS = 1000
_MOST_MILLIS = np.iinfo(np.int64).max // _MICROS


class Decoder:
    """Decodes fetched slices into the columns of one schema. Keeps nothing between calls; for one thread at a time.

    Args:
        schema: columns of :data:`columns.ALL` and :data:`columns.TEXTS`, in any order; only those are built.
        read_committed: leave out the records of aborted transactions.
        check_crcs: compare the checksum of every batch that gives rows, as Java's ``check.crcs``.
        limits: bounds of memory.
    """

    def __init__(
        self, schema: pa.Schema, *, read_committed: bool, check_crcs: bool = True, limits: Limits | None = None
    ) -> None:
        if not len(schema) or any(each not in ALL and each not in TEXTS for each in schema):
            raise ValueError(f"not columns of a record: {schema}")
        self._schema = schema
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._limits = limits or Limits()

    def decode(self, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """The rows of ``slices``, in their order and that of the offsets; nothing where no record is visible.

        Raises:
            CorruptRecords: bytes are damaged; the error names the partition and the batch.
            UnsupportedRecords: an unknown codec, a batch that decompresses to more than the limit, a timestamp beyond
                Spark's range, or bytes that are not UTF-8 in a column wanted as text.
        """
        batches = Batches(slices, read_committed=self._read_committed, check_crcs=self._check_crcs, limits=self._limits)
        for chunk in batches.chunks():
            for first in range(0, len(chunk.starts), self._limits.rows):
                part = chunk.rows(slice(first, first + self._limits.rows))
                rows = _inside(part, fields(part))
                for each in self._with_few_headers(part, rows):
                    yield self._record_batch(part, each)

    def _with_few_headers(self, chunk: Chunk, rows: Fields) -> Iterator[Fields]:
        """All rows, or as many at a time as together have no more headers than the limit."""
        if "headers" not in self._schema.names:
            if len(rows.offset):
                yield rows
            return
        total, most = np.cumsum(rows.header_count), self._limits.headers
        first = before = 0
        while first < len(total):
            end = int(np.searchsorted(total, before + most, side="right"))
            if end == first:
                raise chunk.source.place(rows.batch[first]).unsupported(
                    f"has at offset {rows.offset[first]} a record with {rows.header_count[first]} headers, and at most"
                    f" {most} are read",
                    "Leave the column headers out, or start behind the record.",
                )
            yield rows.rows(slice(first, end))
            first, before = end, int(total[end - 1])

    def _record_batch(self, chunk: Chunk, rows: Fields) -> pa.RecordBatch:
        pairs = Pairs(chunk.memory, rows.key, rows.key_length, rows.value, rows.value_length)
        build: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: self._bytes(pairs.first(), "key", chunk, rows),
            "value": lambda: self._bytes(pairs.second(), "value", chunk, rows),
            "topic": lambda: _topic(chunk, rows),
            "partition": lambda: _partition(chunk, rows),
            "offset": lambda: numbers(rows.offset, pa.int64()),
            "timestamp": lambda: _timestamp(chunk, rows),
            "timestampType": lambda: _timestamp_type(chunk, rows),
            "headers": lambda: headers(chunk, rows),
        }
        return pa.RecordBatch.from_arrays([build[name]() for name in self._schema.names], schema=self._schema)

    def _bytes(self, found: pa.Array, column: str, chunk: Chunk, rows: Fields) -> pa.Array:
        """``found`` itself, or as text."""
        if self._schema.field(column) in ALL:
            return found
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid as error:
            row, why = _not_text(found)
            raise chunk.source.place(rows.batch[row]).unsupported(
                f"has at offset {rows.offset[row]} a {column} that is not UTF-8: {why}",
                f"Ask for the column as binary: .schema('{column} binary, ...').",
            ) from error


def _not_text(found: pa.Array) -> tuple[int, str]:
    """The first element that is not UTF-8, and why. Not in the words of Python's error, which hold the bytes."""
    for row, each in enumerate(found):
        try:
            (each.as_py() or b"").decode()
        except UnicodeDecodeError as error:
            return row, f"{error.reason} at byte {error.start}"
    raise AssertionError("Arrow and Python agree on what UTF-8 is")


def _inside(chunk: Chunk, rows: Fields) -> Fields:
    """The rows in the wanted range: the first and last batch of a slice may go beyond."""
    base_offsets = chunk.source.headers["base_offset"].astype(np.int64)
    start = np.array([each.start for each in chunk.source.slices], np.int64)[chunk.source.slice_of]
    end = np.array([each.end for each in chunk.source.slices], np.int64)[chunk.source.slice_of]
    if (base_offsets >= start).all() and (base_offsets + chunk.source.headers["last_offset_delta"] < end).all():
        return rows
    return rows.rows((rows.offset >= start[rows.batch]) & (rows.offset < end[rows.batch]))


def _topic(chunk: Chunk, rows: Fields) -> pa.Array:
    part = chunk.source.slice_of[rows.batch]
    borders = np.concatenate(([0], np.flatnonzero(np.diff(part)) + 1, [len(part)]))
    texts = [chunk.source.slices[each].frames.tp.topic for each in part[borders[:-1]]]
    return repeated(texts, np.diff(borders).tolist())


def _partition(chunk: Chunk, rows: Fields) -> pa.Array:
    partitions = np.array([each.frames.tp.partition for each in chunk.source.slices], np.int32)
    return numbers(partitions[chunk.source.slice_of][rows.batch], pa.int32())


def _timestamp(chunk: Chunk, rows: Fields) -> pa.Array:
    """Microseconds: the batch's largest under log-append time, otherwise its first and the record's delta."""
    appended = (chunk.source.headers["attributes"] & LOG_APPEND_TIME) != 0
    largest = chunk.source.headers["max_timestamp"].astype(np.int64)
    millis: Longs = np.where(appended, largest, chunk.source.headers["first_timestamp"])[rows.batch]
    millis = millis + np.where(appended[rows.batch], 0, rows.timestamp_delta)
    beyond = (millis > _MOST_MILLIS) | (millis < -_MOST_MILLIS)
    if beyond.any():
        row = int(beyond.argmax())
        raise chunk.source.place(rows.batch[row]).unsupported(
            f"has at offset {rows.offset[row]} a timestamp of {millis[row]} ms, which is beyond Spark's range",
            "Leave the column out with .schema(...), or start behind it.",
        )
    return numbers(millis * _MICROS, ALL.field("timestamp").type)


def _timestamp_type(chunk: Chunk, rows: Fields) -> pa.Array:
    """0 as the producer created it, 1 as the broker appended it."""
    kinds = ((chunk.source.headers["attributes"] & LOG_APPEND_TIME) != 0).astype(np.int32)
    return numbers(kinds[rows.batch], pa.int32())
