"""The fields of many records at once, as Arrow arrays: positions of keys and values, the deltas, and the headers.

A record: length, attributes (one byte, unused), timestamp delta, offset delta, key length and key, value length and
value, count of headers and headers. All lengths, deltas and counts are zigzag varints; a length of -1 means null.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_group_source.records.boundaries import Longs, Memory, decode_varint, decode_varints
from spark_group_source.records.columns import HEADER, HEADERS
from spark_group_source.records.decode_units import DecodeUnit


def fixed_width_array(values: npt.NDArray[np.generic], arrow_type: pa.DataType) -> pa.Array:
    """An array without nulls and without a copy; ``values`` has the memory layout of ``arrow_type``."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def validity_bitmap(null: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bitmap of the elements that are not null; None if no element is null."""
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None


class KeyValueSlices:
    """Binary arrays of keys and values that alternate in ``memory``. A length of -1 means null.

    The offsets of a binary array over this memory are the bounds of key, gap, value, gap, key and so on. Every fourth
    element is a key, so Arrow copies only the bytes of the keys, or of the values. To copy n elements, Arrow reserves n
    times the mean size of the array: the array has one element, of the mean size, and what is copied lies behind it.
    """

    def __init__(self, memory: Memory, keys: Longs, key_lengths: Longs, values: Longs, value_lengths: Longs) -> None:
        self._memory, self._lengths = pa.py_buffer(memory), (key_lengths, value_lengths)
        self._bounds = np.empty(4 * len(keys) + 2, np.int32)
        bounds = self._bounds[2:].reshape(-1, 4)
        bounds[:, 0] = keys
        np.add(keys, np.maximum(key_lengths, 0), out=bounds[:, 1], casting="unsafe")
        bounds[:, 2] = values
        np.add(values, np.maximum(value_lengths, 0), out=bounds[:, 3], casting="unsafe")

    def keys(self) -> pa.Array:
        return self._take(0)

    def values(self) -> pa.Array:
        return self._take(1)

    def _take(self, which: int) -> pa.Array:
        lengths = self._lengths[which]
        null, count = lengths < 0, len(lengths)
        if null.all():
            return pa.nulls(count, pa.binary())
        self._bounds[:2] = 0, 1 + np.maximum(lengths, 0).sum() // count
        slices = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(self._bounds), self._memory])
        positions = np.arange(2 + 2 * which, len(self._bounds), 4, dtype=np.int32)
        # Not pa.array(): it imports pandas where that is installed, which takes 0.2 s of each worker's first task.
        indices = pa.Array.from_buffers(pa.int32(), count, [validity_bitmap(null), pa.py_buffer(positions)])
        return pc.take(slices, indices, boundscheck=False)


class RecordFields(NamedTuple):
    """Parallel arrays with one element per record. ``*_start`` and ``end`` are positions in the unit's memory."""

    batch: Longs
    offset: Longs
    timestamp_delta: Longs
    key_start: Longs
    key_length: Longs
    value_start: Longs
    value_length: Longs
    header_count: Longs
    headers_start: Longs
    end: Longs

    def rows(self, rows: npt.NDArray[np.bool_] | slice) -> RecordFields:
        """The fields of some of the records."""
        return RecordFields(*[column[rows] for column in self])


def locate_fields(unit: DecodeUnit) -> RecordFields:
    """Locates the fields of a unit's records, and checks that they lie within their record.

    Raises:
        CorruptRecords: a length or count is impossible, or an offset lies outside of its record batch.
    """
    memory = np.frombuffer(unit.memory, np.uint8)
    batch, batch_headers = unit.batch, unit.batches.headers
    length, position = decode_varints(memory, unit.starts)
    timestamp_delta, position = decode_varints(memory, position + 1)
    offset_delta, position = decode_varints(memory, position)
    key_length, key = decode_varints(memory, position)
    bad = _impossible(key_length, length)
    value_length, value = decode_varints(memory, key + np.maximum(key_length, 0))
    bad |= _impossible(value_length, length)
    header_count, headers = decode_varints(memory, value + np.maximum(value_length, 0))
    # A header has at least two bytes. Without headers no bytes may be left.
    left = unit.ends - headers
    bad |= (header_count < 0) | (header_count > left >> 1) | ((header_count == 0) & (left != 0))
    bad |= (offset_delta < 0) | (offset_delta > batch_headers["last_offset_delta"].astype(np.int64)[batch])
    offset = batch_headers["base_offset"].astype(np.int64)[batch] + offset_delta
    if bad.any():
        row = int(np.argmax(bad))
        damage = f"its record of offset {offset[row]} has an impossible length or count"
        raise unit.batches.location(batch[row]).corrupt(damage)
    return RecordFields(
        batch, offset, timestamp_delta, key, key_length, value, value_length, header_count, headers, unit.ends
    )


def _impossible(length: Longs, record_length: Longs) -> npt.NDArray[np.bool_]:
    return (length < -1) | (length > record_length)


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
        following: Longs = value + np.maximum(value_length, 0)
        return following

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

    def _check(self, rows: Longs, bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            raise self._error(int(rows[np.argmax(bad)]))

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
