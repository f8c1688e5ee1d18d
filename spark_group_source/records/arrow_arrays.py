"""Arrow arrays from numpy arrays and raw memory, without a Python object per element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_group_source.records.varints import Longs, Memory


def fixed_width_array(values: npt.NDArray[np.generic], arrow_type: pa.DataType) -> pa.Array:
    """An array without nulls and without a copy; ``values`` has the memory layout of ``arrow_type``."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def validity_bitmap(null: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bitmap of the elements that are not null; None if no element is null."""
    return pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None


def repeated_strings(texts: Sequence[str], counts: Sequence[int]) -> pa.Array:
    """A string array with ``counts[i]`` times ``texts[i]``."""
    encoded = [text.encode() for text in texts]
    data = b"".join([text * count for text, count in zip(encoded, counts, strict=True)])
    lengths = np.repeat([len(text) for text in encoded], counts)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class KeyValueSlices:
    """Binary arrays of keys and values that alternate in ``memory``. A length of -1 means null.

    The offsets of a binary array over this memory are the bounds of key, gap, value, gap, key and so on. Every fourth
    element is a key, so Arrow copies only the bytes of the keys, or of the values.
    """

    def __init__(self, memory: Memory, keys: Longs, key_lengths: Longs, values: Longs, value_lengths: Longs) -> None:
        self._nulls = key_lengths < 0, value_lengths < 0
        count = len(keys)
        bounds = np.empty((count, 4), np.int32)
        bounds[:, 0] = keys
        np.add(keys, np.maximum(key_lengths, 0), out=bounds[:, 1], casting="unsafe")
        bounds[:, 2] = values
        np.add(values, np.maximum(value_lengths, 0), out=bounds[:, 3], casting="unsafe")
        self._count = count
        size = max(4 * count - 1, 0)
        self._interleaved = pa.Array.from_buffers(pa.binary(), size, [None, pa.py_buffer(bounds), pa.py_buffer(memory)])

    def keys(self) -> pa.Array:
        """The key of every element."""
        return self._take(0)

    def values(self) -> pa.Array:
        """The value of every element."""
        return self._take(1)

    def _take(self, which: int) -> pa.Array:
        null = self._nulls[which]
        if null.all():
            return pa.nulls(self._count, pa.binary())
        positions = np.arange(2 * which, 4 * self._count, 4, dtype=np.int32)
        # Not pa.array(): it imports pandas where that is installed, which takes 0.2 s of each worker's first task.
        buffers = [validity_bitmap(null), pa.py_buffer(positions)]
        indices = pa.Array.from_buffers(pa.int32(), self._count, buffers)
        return pc.take(self._interleaved, indices, boundscheck=False)
