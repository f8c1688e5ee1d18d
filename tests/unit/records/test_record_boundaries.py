"""The starts of records are the same from numpy's lanes and from the plain loop; varints of every length."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from spark_group_source.records import boundaries
from spark_group_source.records.boundaries import Longs, decode_varint, decode_varints, find_record_starts
from spark_group_source.varints import decode_unsigned
from tests.unit.records.build import HEADER, Record, batch

SIZES = st.sampled_from([0, 1, 55, 56, 57, 58, 300, 8180, 8181, 8182, 8183, 8184, 20_000])
BATCHES = st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=6)


def longs(numbers: list[int]) -> Longs:
    return np.array(numbers, np.int64)


def records(values: list[bytes]) -> tuple[bytes, list[int]]:
    """The records of a record batch with these values, and their starts."""
    raw, found = batch([Record(each) for each in values])[HEADER:], []
    at = 0
    while at < len(raw):
        found.append(at)
        length, at = decode_varint(raw, at)
        at += length
    return raw, found


def with_gaps(batches: list[list[bytes]], gap: int = 0) -> tuple[bytes, Longs, Longs, list[int]]:
    """Memory with record batches of these values, ``gap`` bytes before each; their starts and ends, and the starts of
    their records."""
    memory, begins, ends, expected = b"", [], [], []
    for values in batches:
        memory += b"\x0c\0" * (gap // 2)
        begins.append(len(memory))
        raw, found = records(values)
        expected += [begins[-1] + each for each in found]
        memory += raw
        ends.append(len(memory))
    return memory, longs(begins), longs(ends), expected


def check(batches: list[list[bytes]], gap: int = 0) -> list[int]:
    """Checks that the starts of all records are found, and returns them."""
    memory, begins, ends, expected = with_gaps(batches, gap)
    found, next_starts = find_record_starts(memory, begins, ends, len(expected))
    assert (found.tolist(), next_starts.tolist()) == (expected, ends.tolist())
    return expected


def scan_with_numpy(patch: pytest.MonkeyPatch) -> None:
    """Splits even the smallest record batch, and scans no lane in the plain loop."""
    patch.setattr(boundaries, "_MAX_SEQUENTIAL_LANES", 0)
    patch.setattr(boundaries, "_MIN_SPLIT_RECORDS", 1)
    patch.setattr(boundaries, "_MAX_SPLIT_RECORD_SIZE", 10**9)
    patch.setattr(boundaries, "_LANES_PER_SQRT", 3)
    patch.setattr(boundaries, "_MIN_STOPPING_SIZE", 10**9)


@pytest.fixture
def scanned_lanes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records in each lane that the plain loop scanned."""
    lanes, original = [], boundaries._scan_sequentially

    def count_records(*args: object) -> object:
        scanned = original(*args)  # type: ignore[arg-type]
        lanes.append(len(scanned[0]))
        return scanned

    monkeypatch.setattr(boundaries, "_scan_sequentially", count_records)
    return lanes


@given(BATCHES, st.sampled_from([0, 2, 62]), st.binary(min_size=1, max_size=9))
def test_numpy_and_the_plain_loop_find_records_of_all_sizes(sizes: list[list[int]], gap: int, part: bytes) -> None:
    batches = [[(part * size)[:size] for size in each] for each in sizes]
    check(batches, gap)
    with pytest.MonkeyPatch.context() as patch:
        scan_with_numpy(patch)
        check(batches, gap)


@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 7, 12, 13, 14, 127, 128, 132, 255]) | st.integers(0, 255), min_size=20),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_numpy_and_the_plain_loop_agree_on_damaged_bytes(raw: list[int], parts: list[int]) -> None:
    memory = bytes(raw)
    cuts = np.unique(longs([0, *parts, len(memory)]))
    begins, limits = cuts[:-1], cuts[1:]
    plain = [
        boundaries._scan_sequentially(memory, *each) for each in zip(begins.tolist(), limits.tolist(), strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        scan_with_numpy(patch)
        found, next_starts = find_record_starts(memory, begins, limits, len(memory) // 7)
    for (expected, end), begin, limit, other in zip(plain, begins, limits, next_starts.tolist(), strict=True):
        assert (end == limit) == (other == limit)
        if end == limit:
            assert found[(found >= begin) & (found < limit)].tolist() == expected


def test_a_wrong_guess_is_detected_and_rescanned(scanned_lanes: list[int]) -> None:
    """A value that contains records, such as a copy of another log."""
    copied = records([b"copy"] * 3000)[0]
    expected = check([[b"v" * 100] * 1000 + [copied] + [b"w" * 100] * 1000])
    assert max(scanned_lanes) == len(expected), "no guess was wrong"


def test_a_scan_ends_after_its_limit() -> None:
    memory, begins, _, expected = with_gaps([[b"v" * 20] * 10])
    limit = expected[6] + 1
    found, next_starts = find_record_starts(memory, begins, longs([limit]), 7)
    assert (found.tolist(), next_starts.tolist()) == (expected[:7], [expected[7]])
    nothing = longs([])
    found, next_starts = find_record_starts(b"", nothing, nothing, 0)
    assert (found.tolist(), next_starts.tolist()) == ([], [])


RNG = random.Random(5)
LAYOUTS: dict[str, Callable[[int], bytes]] = {
    "100 B": lambda _: RNG.randbytes(100),
    "text": lambda number: b"order %d of customer %d, " % (number, number % 17) * 4,
    "zeros": lambda _: bytes(100),
    "small integers": lambda _: b"".join(RNG.randrange(100).to_bytes(4, "little") for _ in range(25)),
    "utf-16": lambda number: f"order {number} of customer {number % 17}".encode("utf-16-le") * 2,
    "20 to 700 B": lambda _: RNG.randbytes(RNG.randint(20, 700)),
    "10 kB in a hundred": lambda number: RNG.randbytes(10_000 if number % 100 == 50 else 100),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_record_batches_are_not_scanned_in_the_plain_loop(layout: str, scanned_lanes: list[int]) -> None:
    values = [LAYOUTS[layout](number) for number in range(8000)]
    expected = check([values[:3000], values[3000:3100], values[3100:]])
    assert sum(scanned_lanes) < len(expected) // 5


@pytest.mark.parametrize(("size", "records_each", "plain"), [(8200, 2, True), (8200, 1, False), (8000, 2, False)])
def test_only_records_that_would_stop_their_lanes_again_and_again_are_scanned_in_the_plain_loop_at_once(
    size: int, records_each: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan_block = Mock(wraps=boundaries._scan_block)
    monkeypatch.setattr(boundaries, "_scan_block", scan_block)
    check([[b"v" * size] * records_each] * 40)
    assert scan_block.called != plain


BORDERS = [sign * (2 ** (7 * size - 1) + shift) for size in range(1, 10) for sign in (1, -1) for shift in (-1, 0, 1)]
LONGS = st.sampled_from([0, 2**63 - 1, -(2**63), *BORDERS]) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(LONGS, min_size=1, max_size=30))
def test_varints_of_every_length_are_decoded(values: list[int]) -> None:
    raw, at = bytearray(), [0]
    for each in values:
        encode_varint(each, raw.append)
        at.append(len(raw))
    assert [decode_varint(bytes(raw), each) for each in at[:-1]] == list(zip(values, at[1:], strict=True))
    found, after = decode_varints(np.frombuffer(raw, np.uint8), np.array(at[:-1], np.int64))
    assert (found.tolist(), after.tolist()) == (values, at[1:])


@pytest.mark.parametrize("decode", [decode_varint, decode_unsigned])
@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 30])
def test_a_varint_without_an_end_is_an_index_error(raw: bytes, decode: Callable[[bytes, int], tuple[int, int]]) -> None:
    with pytest.raises(IndexError):
        decode(raw, 0)
