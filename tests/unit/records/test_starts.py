"""Where records begin: the same whether batches are walked side by side or one record after the other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from spark_group_source.records import starts
from spark_group_source.records.starts import record_starts
from spark_group_source.records.varints import Longs

SIZES = st.sampled_from([1, 2, 62, 63, 64, 65, 300, 8190, 8191])
BATCHES = st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=6)


def record(size: int) -> bytes:
    length = bytearray()
    encode_varint(size, length.append)
    return bytes(length) + bytes(size)


def longs(numbers: list[int]) -> Longs:
    return np.array(numbers, np.int64)


def walked(memory: bytes, begins: list[int], ends: list[int], counts: list[int]) -> tuple[list[int], list[bool]]:
    found, filled = record_starts(memory, longs(begins), longs(ends), longs(counts))
    return found.tolist(), filled.tolist()


def borders(parts: list[bytes]) -> list[int]:
    return [0, *itertools.accumulate(len(each) for each in parts)]


def with_gaps(sizes: list[list[int]], gap: int) -> tuple[bytes, list[int], list[int], list[int]]:
    """Memory with batches of records of these sizes, ``gap`` bytes between them: it, their begins and ends, and where
    records begin."""
    memory, begins, ends, starts = b"", [], [], []
    for batch in sizes:
        memory += b"\xff" * gap
        begins.append(len(memory))
        for size in batch:
            starts.append(len(memory))
            memory += record(size)
        ends.append(len(memory))
    return memory, begins, ends, starts


@pytest.fixture
def abreast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Walks side by side however few batches there are; tells of each walk whether it came to its end."""
    ended: list[bool] = []
    own = starts._abreast

    def noted(*args: object) -> object:
        found = own(*args)  # type: ignore[arg-type]
        ended.append(found is not None)
        return found

    monkeypatch.setattr(starts, "_LEAST_ABREAST", 0)
    monkeypatch.setattr(starts, "_MOST_EMPTY", 1000)
    monkeypatch.setattr(starts, "_abreast", noted)
    return ended


@given(BATCHES, st.sampled_from([0, 1, 61]))
def test_batches_side_by_side_begin_where_they_do_one_after_the_other(sizes: list[list[int]], gap: int) -> None:
    memory, begins, ends, expected = with_gaps(sizes, gap)
    bounds = longs(begins), longs(ends), longs([len(each) for each in sizes])
    abreast = starts._abreast(memory, *bounds)
    assert abreast is not None
    found, filled = starts._one_by_one(memory, *bounds)
    assert abreast.tolist() == found.tolist() == expected
    assert filled.all()


@pytest.mark.parametrize("size", [1, 63, 64, 8191, 8192, 2**20 - 1, 2**20])
def test_records_of_every_length_are_walked(abreast: list[bool], size: int) -> None:
    memory, begins, ends, expected = with_gaps([[size] * 2, [size] * 4], gap=3)
    assert walked(memory, begins, ends, [2, 4]) == (expected, [True, True])
    assert abreast == [size < 8192], "longer ones are walked one by one"


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_damage_leads_the_walk_side_by_side_nowhere_else(raw: bytes, counts: list[int], data: st.DataObject) -> None:
    cuts = st.lists(st.integers(0, len(raw)), min_size=len(counts) - 1, max_size=len(counts) - 1)
    inner = sorted(data.draw(cuts))
    bounds = longs([0, *inner]), longs([*inner, len(raw)]), longs(counts)
    abreast = starts._abreast(raw, *bounds)
    found, filled = starts._one_by_one(raw, *bounds)
    assert abreast is None or (filled.all() and abreast.tolist() == found.tolist())


def test_batches_that_their_records_do_not_fill_are_told(abreast: list[bool]) -> None:
    memory = b"\x02a" + b"\x02b" + b"\x08c" + b"\x02d"
    _, filled = walked(memory, [0, 2, 4, 6], [2, 4, 6, 8], [1, 2, 1, 1])
    assert filled == [True, False, False, True], "one has more records than fit, the other a length that is too long"
    assert abreast == [False]


def test_one_batch_of_many_records_among_small_ones_takes_no_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_abreast", lambda *_: pytest.fail("walked side by side"))
    memory, begins, ends, expected = with_gaps([[1] * 10_000, *[[1]] * 1000], gap=0)
    assert walked(memory, begins, ends, [10_000, *[1] * 1000])[0] == expected


def test_nothing_begins_nowhere() -> None:
    assert walked(b"", [], [], []) == ([], [])
