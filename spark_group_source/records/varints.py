"""Zigzag varints of 1 to 10 bytes: many at once with numpy, or a single one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Memory = bytes | bytearray | memoryview

_CONTINUATION_BIT = 0x80
_MAX_SIZE = 10


def decode_varints(memory: Bytes, starts: Longs) -> tuple[Longs, Longs]:
    """Decodes the varint at each position of ``starts``: the values, and the positions after them.

    A position outside of ``memory`` reads its first or last byte, and an eleventh byte is never read. Damaged positions
    give wrong values, not errors, so callers check the positions after the varints.
    """
    raw = memory.take(starts, mode="clip").astype(np.uint64)
    after = starts + 1
    if (raw >= _CONTINUATION_BIT).any():
        # Most varints here have one or two bytes. Decoding the second byte of all costs less than selecting some.
        has_second = raw >> 7
        second = memory.take(after, mode="clip").astype(np.uint64)
        raw &= 0x7F
        raw |= ((second & 0x7F) << 7) * has_second
        after += has_second.view(np.int64)
        _add_further_bytes(memory, raw, after, np.flatnonzero((second >= _CONTINUATION_BIT) & (has_second > 0)))
    return ((raw >> 1) ^ -(raw & 1)).view(np.int64), after


def _add_further_bytes(memory: Bytes, raw: npt.NDArray[np.uint64], after: Longs, rows: npt.NDArray[np.intp]) -> None:
    """Adds the third and later bytes of the varints that ``rows`` selects."""
    for index in range(2, _MAX_SIZE):
        if not rows.size:
            return
        byte = memory.take(after[rows], mode="clip").astype(np.uint64)
        raw[rows] |= (byte & 0x7F) << np.uint64(7 * index)
        after[rows] += 1
        rows = rows[byte >= _CONTINUATION_BIT]


def decode_varint(memory: Sequence[int], start: int) -> tuple[int, int]:
    """Decodes the varint at ``start``: the value, and the position after it.

    Raises:
        IndexError: it extends beyond ``memory``, or beyond ten bytes.
    """
    raw = 0
    for index in range(_MAX_SIZE):
        byte = memory[start + index]
        raw |= (byte & 0x7F) << 7 * index
        if byte < _CONTINUATION_BIT:
            return (raw >> 1) ^ -(raw & 1), start + index + 1
    raise IndexError("a varint of more than ten bytes")
