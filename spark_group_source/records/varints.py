"""Zigzag varints of 1 to 10 bytes: many at once with numpy, and one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Memory = bytes | bytearray | memoryview

_MORE = 0x80
_MOST = 10


def varints(memory: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Decodes the varint at each position ``at``: the values, and the positions behind them.

    A position outside of ``memory`` reads its first or last byte, and an eleventh byte is never read: damaged positions
    give wrong values, not errors. So callers check where they end up.
    """
    raw = memory.take(at, mode="clip").astype(np.uint64)
    after = at + 1
    if (raw >= _MORE).any():
        # Most often of two bytes: lengths of records and values. All at once, as picking out those costs more.
        more = raw >> 7
        second = memory.take(after, mode="clip").astype(np.uint64)
        raw &= 0x7F
        raw |= ((second & 0x7F) << 7) * more
        after += more.view(np.int64)
        _further(memory, raw, after, np.flatnonzero((second >= _MORE) & (more > 0)))
    return ((raw >> 1) ^ -(raw & 1)).view(np.int64), after


def _further(memory: Bytes, raw: npt.NDArray[np.uint64], after: Longs, rows: npt.NDArray[np.intp]) -> None:
    """Adds the third byte and those behind it, where ``rows`` have them."""
    for index in range(2, _MOST):
        if not rows.size:
            return
        byte = memory.take(after[rows], mode="clip").astype(np.uint64)
        raw[rows] |= (byte & 0x7F) << np.uint64(7 * index)
        after[rows] += 1
        rows = rows[byte >= _MORE]


def varint(memory: Sequence[int], at: int) -> tuple[int, int]:
    """Decodes the varint at ``at``: the value, and the position behind it.

    Raises:
        IndexError: it goes beyond ``memory``, or ten bytes.
    """
    raw = 0
    for index in range(_MOST):
        byte = memory[at + index]
        raw |= (byte & 0x7F) << 7 * index
        if byte < _MORE:
            return (raw >> 1) ^ -(raw & 1), at + index + 1
    raise IndexError("a varint of more than ten bytes")
