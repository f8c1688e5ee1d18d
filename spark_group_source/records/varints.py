"""Zigzag varints of many records at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LONGEST = 10
"""Bytes of the longest varint, which holds 64 bits."""


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varint at each position, and the positions behind them.

    Args:
        data: the bytes, with at least :data:`LONGEST` to spare behind the last position.
        at: positions, shape (n,).

    Raises:
        ValueError: a varint has more than ten bytes.
    """
    first = data[at]
    raw = (first & 0x7F).astype(np.uint64)
    after = at + 1
    (longer,) = np.nonzero(first & 0x80)
    shift = 7
    while len(longer):
        if shift >= 7 * LONGEST:
            raise ValueError("a varint of more than ten bytes")
        byte = data[after[longer]]
        raw[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] += 1
        longer = longer[byte >= 0x80]
        shift += 7
    # Zigzag: the lowest bit is the sign.
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), after


def walk(data: bytes, at: int, end: int, count: int, begins: list[int]) -> None:
    """Appends to ``begins`` where each of the ``count`` records that fill ``data[at:end]`` begins, with its length.

    The records are chained by their lengths, so this is the one loop over records in Python. It is kept to what a
    length of one or two bytes needs: records up to 8 KiB.

    Raises:
        ValueError: the lengths do not add up.
    """
    append = begins.append
    try:
        for _ in range(count):
            append(at)
            size = data[at]
            if size < 0x80:
                at += (size >> 1) + 1
                continue
            high = data[at + 1]
            if high < 0x80:
                at += (size & 0x7F | high << 7) // 2 + 2
            else:
                at += _long_size(data, at)
    except IndexError:
        raise ValueError("a record ends beyond its batch") from None
    if at != end:
        raise ValueError(f"{count} records end {abs(end - at)} bytes {'before' if at < end else 'behind'} their batch")


def _long_size(data: bytes, at: int) -> int:
    """Bytes of the record at ``at``, its length included."""
    size = 0
    for index in range(5):
        byte = data[at + index]
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (size >> 1) + index + 1
    raise ValueError("a record length of more than five bytes")
