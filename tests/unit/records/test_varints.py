"""Zigzag varints of every length, a single one and many at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from spark_group_source.records.boundaries import decode_varint, decode_varints
from spark_group_source.varints import decode_unsigned

BORDERS = [sign * (2 ** (7 * size - 1) + shift) for size in range(1, 10) for sign in (1, -1) for shift in (-1, 0, 1)]
LONGS = st.sampled_from([0, 2**63 - 1, -(2**63), *BORDERS]) | st.integers(-(2**63), 2**63 - 1)


def encoded(values: list[int]) -> tuple[bytes, list[int]]:
    """The bytes, and the start of each value and the end of the last."""
    raw, at = bytearray(), [0]
    for each in values:
        encode_varint(each, raw.append)
        at.append(len(raw))
    return bytes(raw), at


@given(st.lists(LONGS, min_size=1, max_size=30))
def test_varints_of_every_length_are_decoded(values: list[int]) -> None:
    raw, at = encoded(values)
    assert [decode_varint(raw, each) for each in at[:-1]] == list(zip(values, at[1:], strict=True))
    found, after = decode_varints(np.frombuffer(raw, np.uint8), np.array(at[:-1], np.int64))
    assert (found.tolist(), after.tolist()) == (values, at[1:])


def test_decoding_many_varints_stops_after_ten_bytes() -> None:
    _, after = decode_varints(np.full(30, 0xFF, np.uint8), np.array([0], np.int64))
    assert after.tolist() == [10]


@pytest.mark.parametrize("decode", [decode_varint, decode_unsigned])
@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 30])
def test_a_varint_without_an_end_is_an_index_error(raw: bytes, decode: Callable[[bytes, int], tuple[int, int]]) -> None:
    with pytest.raises(IndexError):
        decode(raw, 0)
