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
_SIZE_BITS, _SIZE_MASK = 2, 3


def _zigzag(raw: Longs) -> Longs:
    return (raw >> 1) ^ -(raw & 1)


_ONE_BYTE = _zigzag(np.arange(256))
"""The value of a varint of one byte."""
_BYTES = np.arange(2**16)
_TWO_BYTES = np.where(
    _BYTES & 0x80 == 0,
    _zigzag(_BYTES & 0x7F) << _SIZE_BITS | 1,
    np.where(_BYTES < 0x8000, _zigzag(_BYTES & 0x7F | (_BYTES & 0x7F00) >> 1) << _SIZE_BITS | 2, 0),
).astype(np.int32)
"""For the first two bytes of a varint: its value, and in the lowest bits its size; 0 for a longer varint."""


def decode_varints(memory: Bytes, starts: Longs) -> tuple[Longs, Longs]:
    """Decodes the varint at each position of ``starts``: the values, and the positions after them.

    A position outside of ``memory`` reads its first or last byte, and an eleventh byte is never read. Damaged positions
    give wrong values, not errors, so callers check the positions after the varints.
    """
    first = memory.take(starts, mode="clip")
    if not (first >= _CONTINUATION_BIT).any():
        return _ONE_BYTE.take(first), starts + 1
    # Most varints here have one or two bytes. Reading the second byte of all costs less than selecting some.
    second = memory.take(starts + 1, mode="clip").astype(np.uint16)
    second <<= 8
    second |= first
    entries = _TWO_BYTES.take(second)
    sizes = entries & _SIZE_MASK
    values = (entries >> _SIZE_BITS).astype(np.int64)
    after = starts + sizes
    longer = np.flatnonzero(sizes == 0)
    if longer.size:
        values[longer], after[longer] = _decode_longer(memory, starts[longer], second[longer])
    return values, after


def _decode_longer(memory: Bytes, starts: Longs, first_two: npt.NDArray[np.uint16]) -> tuple[Longs, Longs]:
    """Decodes varints of at least three bytes."""
    raw = (first_two & 0x7F | (first_two & 0x7F00) >> 1).astype(np.uint64)
    after, rows = starts + 2, np.arange(len(starts))
    for index in range(2, _MAX_SIZE):
        byte = memory.take(after[rows], mode="clip").astype(np.uint64)
        raw[rows] |= (byte & 0x7F) << np.uint64(7 * index)
        after[rows] += 1
        rows = rows[byte >= _CONTINUATION_BIT]
        if not rows.size:
            break
    return ((raw >> 1) ^ -(raw & 1)).view(np.int64), after


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
