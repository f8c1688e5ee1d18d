"""Arrow arrays of bytes and text, built without a Python object per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_group_source.records.varints import Bytes, Ints


def cut_bytes(data: Bytes, at: Ints, size: Ints) -> pa.Array:
    """The binary array of ``data[at : at + size]`` for each pair; null where the size is negative.

    Args:
        data: all bytes, fewer than 2 GiB.
        at: ascending positions, shape (n,), each at or behind the end of the one before.
        size: bytes of each, shape (n,).
    """
    null = size < 0
    if null.all():
        return pa.nulls(len(at), pa.binary())
    # An Arrow array over the whole run, whose elements are in turn a value and the gap behind it: taking every other
    # one copies the values together, in C.
    bounds = np.empty(2 * len(at), np.int32)
    bounds[0::2] = at
    bounds[1::2] = at + np.maximum(size, 0)
    both = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    wanted = np.arange(0, len(bounds), 2, dtype=np.int32)
    return both.take(pa.array(wanted, mask=null if null.any() else None))


def repeat_text(texts: Sequence[str], times: npt.NDArray[Any]) -> pa.Array:
    """The string array of each text, repeated as often as ``times`` says."""
    encoded = [text.encode() for text in texts]
    sizes = np.repeat(np.array([len(each) for each in encoded], np.int32), times)
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    data = b"".join(each * int(count) for each, count in zip(encoded, times, strict=True))
    return pa.Array.from_buffers(pa.string(), len(sizes), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
