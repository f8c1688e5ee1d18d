"""The fields of many records at once: where keys, values and headers lie, and the deltas.

A record: length, attributes (one byte, unused), timestamp delta, offset delta, key length and key, value length and
value, count of headers and headers. All lengths, deltas and counts are zigzag varints; a length of -1 means null.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_group_source.records.chunks import Chunk
from spark_group_source.records.varints import Longs, varints


class Fields(NamedTuple):
    """Parallel arrays with one element per record. Positions are in the chunk's memory."""

    batch: Longs
    offset: Longs
    timestamp_delta: Longs
    key: Longs
    key_length: Longs
    value: Longs
    value_length: Longs
    header_count: Longs
    headers: Longs
    end: Longs

    def rows(self, which: npt.NDArray[np.bool_] | slice) -> Fields:
        """The fields of some of the records."""
        return Fields(*[each[which] for each in self])


def fields(chunk: Chunk) -> Fields:
    """Locates everything in the records of a chunk, and checks that it lies within its record.

    Raises:
        CorruptRecords: lengths or counts do not add up, or an offset is beyond its batch.
    """
    memory = np.frombuffer(chunk.memory, np.uint8)
    batch, headers_of = chunk.batch, chunk.source.headers
    length, at = varints(memory, chunk.starts)
    timestamp_delta, at = varints(memory, at + 1)
    offset_delta, at = varints(memory, at)
    key_length, key = varints(memory, at)
    bad = _impossible(key_length, length)
    value_length, value = varints(memory, key + np.maximum(key_length, 0))
    bad |= _impossible(value_length, length)
    header_count, headers = varints(memory, value + np.maximum(value_length, 0))
    # A header takes two bytes at least. Where there is none, nothing may be left.
    left = chunk.ends - headers
    bad |= (header_count < 0) | (header_count > left >> 1) | ((header_count == 0) & (left != 0))
    bad |= (offset_delta < 0) | (offset_delta > headers_of["last_offset_delta"].astype(np.int64)[batch])
    offset = headers_of["base_offset"].astype(np.int64)[batch] + offset_delta
    if bad.any():
        row = int(bad.argmax())
        what = f"a length or count in its record of offset {offset[row]} cannot be"
        raise chunk.source.place(batch[row]).corrupt(what)
    return Fields(
        batch, offset, timestamp_delta, key, key_length, value, value_length, header_count, headers, chunk.ends
    )


def _impossible(length: Longs, record: Longs) -> npt.NDArray[np.bool_]:
    return (length < -1) | (length > record)
