"""The headers column: for each record a list of (key, value), NULL for a record without headers."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from spark_group_source.records.arrow_arrays import KeyValueSlices, validity_bitmap
from spark_group_source.records.columns import HEADER, HEADERS
from spark_group_source.records.decode_units import DecodeUnit
from spark_group_source.records.record_fields import RecordFields
from spark_group_source.records.varints import Longs, decode_varint, decode_varints

_MIN_ROWS_AT_ONCE = 17
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def decode_headers(unit: DecodeUnit, rows: RecordFields) -> pa.Array:
    """Decodes the headers of ``rows``, in order, with duplicates and null values.

    Raises:
        CorruptRecords: a length extends beyond its record, or bytes follow the last header.
    """
    counts = rows.header_count
    offsets = np.concatenate(([0], np.cumsum(counts)))
    slices = _HeaderDecoder(unit, rows, offsets[:-1], int(offsets[-1])).slices()
    items = pa.StructArray.from_arrays([_text(slices.keys()), slices.values()], fields=list(HEADER))
    return pa.Array.from_buffers(
        HEADERS, len(counts), [validity_bitmap(counts == 0), pa.py_buffer(offsets.astype(np.int32))], children=[items]
    )


class _HeaderDecoder:
    """Locates header number n of all records at once, as long as enough records have that many."""

    def __init__(self, unit: DecodeUnit, rows: RecordFields, first: Longs, total: int) -> None:
        self._unit = unit
        self._memory = np.frombuffer(unit.memory, np.uint8)
        self._rows = rows
        self._first = first
        self._key, self._key_length, self._value, self._value_length = np.zeros((4, total), np.int64)

    def slices(self) -> KeyValueSlices:
        rows = np.flatnonzero(self._rows.header_count)
        positions = self._rows.headers_start[rows]
        done = 0
        while rows.size >= _MIN_ROWS_AT_ONCE:
            positions = self._decode_next(rows, positions, done)
            done += 1
            ended = self._rows.header_count[rows] == done
            self._check(rows, ended & (positions != self._rows.end[rows]))
            rows, positions = rows[~ended], positions[~ended]
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            self._decode_rest(row, position, done)
        return KeyValueSlices(self._unit.memory, self._key, self._key_length, self._value, self._value_length)

    def _decode_next(self, rows: Longs, positions: Longs, done: int) -> Longs:
        """Decodes one header of each of ``rows``; the positions of their next headers."""
        ends = self._rows.end[rows]
        key_length, key = decode_varints(self._memory, positions)
        self._check(rows, (key_length < 0) | (key_length > ends - key))
        value_length, value = decode_varints(self._memory, key + key_length)
        self._check(rows, (value_length < -1) | (value_length > ends - value))
        index = self._first[rows] + done
        self._key[index], self._key_length[index] = key, key_length
        self._value[index], self._value_length[index] = value, value_length
        return value + np.maximum(value_length, 0)

    def _decode_rest(self, row: int, position: int, done: int) -> None:
        """Decodes the other headers of one record. Numpy would be slow for a few records with a million headers."""
        memory, end, first = self._unit.memory, int(self._rows.end[row]), int(self._first[row])
        for index in range(first + done, first + int(self._rows.header_count[row])):
            try:
                key_length, key = decode_varint(memory, position)
                value_length, value = decode_varint(memory, key + max(key_length, 0))
            except IndexError:
                raise self._error(row) from None
            position = value + max(value_length, 0)
            if key_length < 0 or value_length < -1 or position > end:
                raise self._error(row)
            self._key[index], self._key_length[index] = key, key_length
            self._value[index], self._value_length[index] = value, value_length
        if position != end:
            raise self._error(row)

    def _check(self, rows: Longs, bad: np.ndarray) -> None:
        if bad.any():
            raise self._error(int(rows[bad.argmax()]))

    def _error(self, row: int) -> Exception:
        location = self._unit.batches.location(self._rows.batch[row])
        return location.corrupt(
            f"the headers of the record at offset {self._rows.offset[row]} do not fit in the record"
        )


def _text(keys: pa.Array) -> pa.Array:
    """Bytes as text. Invalid UTF-8 becomes U+FFFD, as in Java's ``new String(bytes, UTF_8)``."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Python replaces an encoded surrogate with three replacement characters, Java with one.
        return pa.array(
            [_SURROGATE.sub(_REPLACEMENT, key).decode("utf-8", "replace") for key in keys.to_pylist()], pa.string()
        )
