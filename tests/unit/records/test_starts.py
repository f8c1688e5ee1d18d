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

SIZES = st.sampled_from([1, 2, 62, 63, 64, 65, 300, 8190, 8191])
BATCHES = st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=6)


def record(size: int) -> bytes:
    length = bytearray()
    encode_varint(size, length.append)
    return bytes(length) + bytes(size)


def walked(memory: bytes, begins: list[int], counts: list[int]) -> list[int]:
    return list(record_starts(memory, np.array(begins, np.int64), np.array(counts, np.int64)))


def borders(parts: list[bytes]) -> list[int]:
    return [0, *itertools.accumulate(len(each) for each in parts)]


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


@given(BATCHES)
def test_batches_side_by_side_begin_where_they_do_one_after_the_other(sizes: list[list[int]]) -> None:
    records = [record(size) for each in sizes for size in each]
    expected = borders(records)
    memory = b"".join(records)
    begins = borders([b"".join(map(record, each)) for each in sizes])
    counts = [len(each) for each in sizes]
    found = starts._abreast(memory, np.array(begins, np.int64), np.array(counts, np.int64))
    assert found is not None
    assert found.tolist() == starts._one_by_one(memory, sum(counts)) == expected


@pytest.mark.parametrize("size", [1, 63, 64, 8191, 8192, 2**20 - 1, 2**20])
def test_records_of_every_length_are_walked(abreast: list[bool], size: int) -> None:
    step = len(record(size))
    assert walked(record(size) * 6, [0, 2 * step, 6 * step], [2, 4]) == [step * number for number in range(7)]
    assert abreast == [size < 8192], "longer ones are walked one by one"


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_damage_leads_the_walk_side_by_side_nowhere_else(raw: bytes, counts: list[int], data: st.DataObject) -> None:
    cuts = st.lists(st.integers(0, len(raw)), min_size=len(counts) - 1, max_size=len(counts) - 1)
    begins = [0, *sorted(data.draw(cuts)), len(raw)]
    found = starts._abreast(raw, np.array(begins, np.int64), np.array(counts, np.int64))
    assert found is None or found.tolist() == starts._one_by_one(raw, sum(counts))


def test_a_walk_out_of_memory_leaves_zeros(abreast: list[bool]) -> None:
    assert walked(b"\x02a\x08b", [0, 4], [4]) == [0, 2, 7, 0, 0]
    assert abreast == [False]


def test_one_batch_of_many_records_among_small_ones_takes_no_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_abreast", lambda *_: pytest.fail("walked side by side"))
    sizes = [[1] * 10_000, *[[1]] * 1000]
    begins = borders([b"".join(map(record, each)) for each in sizes])
    assert len(walked(bytes(begins[-1]), begins, [len(each) for each in sizes])) == 11_001


def test_nothing_begins_nowhere() -> None:
    assert walked(b"", [0], []) == [0]
