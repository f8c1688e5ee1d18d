"""The fields of many records at once: positions of keys, values and headers, and the deltas.

A record: length, attributes (one byte, unused), timestamp delta, offset delta, key length and key, value length and
value, count of headers and headers. All lengths, deltas and counts are zigzag varints; a length of -1 means null.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark_group_source.records.decode_units import DecodeUnit
from spark_group_source.records.varints import Longs, decode_varints


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
        row = int(bad.argmax())
        damage = f"its record of offset {offset[row]} has an impossible length or count"
        raise unit.batches.location(batch[row]).corrupt(damage)
    return RecordFields(
        batch, offset, timestamp_delta, key, key_length, value, value_length, header_count, headers, unit.ends
    )


def _impossible(length: Longs, record_length: Longs) -> npt.NDArray[np.bool_]:
    return (length < -1) | (length > record_length)
