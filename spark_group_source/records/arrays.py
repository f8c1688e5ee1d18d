"""Arrow arrays made of numpy arrays and raw memory, without a Python object per element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_group_source.records.varints import Longs, Memory


def numbers(values: npt.NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """A fixed-width array without nulls. Nothing is copied; ``values`` has the layout of ``kind``."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def validity(null: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bitmap of what is not null; None where nothing is."""
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None


def repeated(texts: Sequence[str], counts: Sequence[int]) -> pa.Array:
    """A string array with ``counts[i]`` times ``texts[i]``."""
    encoded = [each.encode() for each in texts]
    data = b"".join([each * count for each, count in zip(encoded, counts, strict=True)])
    lengths = np.repeat([len(each) for each in encoded], counts)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class Pairs:
    """Binary arrays of two byte strings per element, first and second, which lie in memory in turns.

    The offsets of a binary array over the raw memory are the bounds of first, gap, second, gap, first and so on: taking
    every fourth element copies only the bytes that are wanted. A length of -1 means null.
    """

    def __init__(self, memory: Memory, first: Longs, first_length: Longs, second: Longs, second_length: Longs) -> None:
        self._nulls = first_length < 0, second_length < 0
        count = len(first)
        bounds = np.empty((count, 4), np.int32)
        bounds[:, 0] = first
        np.add(first, np.maximum(first_length, 0), out=bounds[:, 1], casting="unsafe")
        bounds[:, 2] = second
        np.add(second, np.maximum(second_length, 0), out=bounds[:, 3], casting="unsafe")
        self._count = count
        elements = max(4 * count - 1, 0)
        self._between = pa.Array.from_buffers(pa.binary(), elements, [None, pa.py_buffer(bounds), pa.py_buffer(memory)])

    def first(self) -> pa.Array:
        """The first byte string of every element."""
        return self._take(0)

    def second(self) -> pa.Array:
        """The second byte string of every element."""
        return self._take(1)

    def _take(self, which: int) -> pa.Array:
        null = self._nulls[which]
        if null.all():
            return pa.nulls(self._count, pa.binary())
        at = np.arange(2 * which, 4 * self._count, 4, dtype=np.int32)
        indices = pa.array(at, mask=null) if null.any() else pa.array(at)
        return pc.take(self._between, indices, boundscheck=False)
