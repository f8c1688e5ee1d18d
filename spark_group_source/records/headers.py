"""Record headers to Arrow lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_group_source.records.columns import COLUMNS
from spark_group_source.records.cut import cut_bytes
from spark_group_source.records.varints import Bytes, Ints, read_varints

_SMALLEST_HEADER = 2


def cut_headers(data: Bytes, at: Ints, count: Ints, end: Ints) -> pa.Array:
    """The list array of each record's headers: in order, with duplicates and null values; NULL for a record without.

    Args:
        data: all bytes.
        at: where each record's headers begin, shape (n,).
        count: number of headers of each record.
        end: where each record ends, which is where its headers must.

    Raises:
        ValueError: the headers do not add up.
    """
    if (count > (end - at) // _SMALLEST_HEADER).any():
        raise ValueError("a record claims more headers than it has bytes for")
    bounds = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=bounds[1:])
    key_at, key_size, value_at, value_size = (np.empty(bounds[-1], np.int64) for _ in range(4))
    at = at.copy()
    # All records' first headers at once, then all second ones: records have few.
    for number in range(int(count.max(initial=0))):
        (having,) = np.nonzero(count > number)
        place = bounds[having] + number
        key_size[place], key_at[place] = read_varints(data, at[having])
        behind = key_at[place] + key_size[place]
        if (key_size[place] < 0).any() or (behind > end[having]).any():
            raise ValueError("a header's key is longer than its record")
        value_size[place], value_at[place] = read_varints(data, behind)
        at[having] = value_at[place] + np.maximum(value_size[place], 0)
        if (value_size[place] < -1).any() or (at[having] > end[having]).any():
            raise ValueError("a header's value is longer than its record")
    if (at != end).any():
        raise ValueError("a record's headers do not end where it does")
    fields = list(COLUMNS["headers"].value_type)
    pairs = [_text(cut_bytes(data, key_at, key_size)), cut_bytes(data, value_at, value_size)]
    headers = pa.StructArray.from_arrays(pairs, fields=fields)
    lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), headers, mask=pa.array(count == 0))
    return lists.cast(COLUMNS["headers"])


def _text(encoded: pa.Array) -> pa.Array:
    """UTF-8 to text; bytes that are none become U+FFFD, as Java's String does with them."""
    try:
        return encoded.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "replace") for each in encoded.to_pylist()], pa.string())
