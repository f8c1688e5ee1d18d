"""The headers column: for each record a list of (key, value), NULL where it has none."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from spark_group_source.records.arrays import Pairs, validity
from spark_group_source.records.chunks import Chunk
from spark_group_source.records.columns import HEADER, HEADERS
from spark_group_source.records.fields import Fields
from spark_group_source.records.varints import Longs, varint, varints

_FEW = 16
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def headers(chunk: Chunk, rows: Fields) -> pa.Array:
    """Decodes the headers of ``rows``: in their order, with duplicates and null values.

    Raises:
        CorruptRecords: a length is beyond its record, or bytes are left behind the last header.
    """
    counts = rows.header_count
    offsets = np.concatenate(([0], np.cumsum(counts)))
    pairs = _Walk(chunk, rows, offsets[:-1], int(offsets[-1])).pairs()
    items = pa.StructArray.from_arrays([_text(pairs.first()), pairs.second()], fields=list(HEADER))
    return pa.Array.from_buffers(
        HEADERS, len(counts), [validity(counts == 0), pa.py_buffer(offsets.astype(np.int32))], children=[items]
    )


class _Walk:
    """Finds the headers: the n-th of all records at once, as long as enough records have that many."""

    def __init__(self, chunk: Chunk, rows: Fields, first: Longs, total: int) -> None:
        self._chunk = chunk
        self._memory = np.frombuffer(chunk.memory, np.uint8)
        self._rows = rows
        self._first = first
        self._key, self._key_length, self._value, self._value_length = np.zeros((4, total), np.int64)

    def pairs(self) -> Pairs:
        rows = np.flatnonzero(self._rows.header_count)
        at = self._rows.headers[rows]
        done = 0
        while rows.size > _FEW:
            at = self._next(rows, at, done)
            done += 1
            ended = self._rows.header_count[rows] == done
            self._check(rows, ended & (at != self._rows.end[rows]))
            rows, at = rows[~ended], at[~ended]
        for row, position in zip(rows.tolist(), at.tolist(), strict=True):
            self._rest(row, position, done)
        return Pairs(self._chunk.memory, self._key, self._key_length, self._value, self._value_length)

    def _next(self, rows: Longs, at: Longs, done: int) -> Longs:
        """Decodes one header of each of ``rows``, and says where the next begins."""
        ends = self._rows.end[rows]
        key_length, key = varints(self._memory, at)
        self._check(rows, (key_length < 0) | (key_length > ends - key))
        value_length, value = varints(self._memory, key + key_length)
        self._check(rows, (value_length < -1) | (value_length > ends - value))
        index = self._first[rows] + done
        self._key[index], self._key_length[index] = key, key_length
        self._value[index], self._value_length[index] = value, value_length
        return value + np.maximum(value_length, 0)

    def _rest(self, row: int, at: int, done: int) -> None:
        """Decodes what is left of one record's headers: all at once would take long where one has a million."""
        memory, end, first = self._chunk.memory, int(self._rows.end[row]), int(self._first[row])
        for index in range(first + done, first + int(self._rows.header_count[row])):
            try:
                key_length, key = varint(memory, at)
                value_length, value = varint(memory, key + max(key_length, 0))
            except IndexError:
                raise self._error(row) from None
            at = value + max(value_length, 0)
            if key_length < 0 or value_length < -1 or at > end:
                raise self._error(row)
            self._key[index], self._key_length[index] = key, key_length
            self._value[index], self._value_length[index] = value, value_length
        if at != end:
            raise self._error(row)

    def _check(self, rows: Longs, bad: np.ndarray) -> None:
        if bad.any():
            raise self._error(int(rows[bad.argmax()]))

    def _error(self, row: int) -> Exception:
        place = self._chunk.source.place(self._rows.batch[row])
        return place.corrupt(f"the headers of the record at offset {self._rows.offset[row]} do not fit in it")


def _text(keys: pa.Array) -> pa.Array:
    """Bytes as text. What is not UTF-8 becomes U+FFFD, in the way of Java's ``new String(bytes, UTF_8)``."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Where Python puts three replacements for an encoded surrogate, Java puts one.
        return pa.array(
            [_SURROGATE.sub(_REPLACEMENT, key).decode("utf-8", "replace") for key in keys.to_pylist()], pa.string()
        )
