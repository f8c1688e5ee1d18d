"""Varints, as in Kafka's protocol, its record batches and snappy: seven bits in each byte, the lowest ones first. All
bytes but the last have their highest bit set.
"""

from __future__ import annotations

from collections.abc import Sequence


def decode_unsigned(memory: Sequence[int], start: int, max_size: int = 5) -> tuple[int, int]:
    """Decodes the unsigned varint at ``start``: the value, and the position after it.

    Raises:
        IndexError: the varint extends beyond ``memory``, or beyond ``max_size`` bytes.
    """
    value = 0
    for index, byte in enumerate(memory[start : start + max_size]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, start + index + 1
    raise IndexError("a varint is incomplete")
