"""How many bytes a fetch asks for, by the sizes that a worker learned."""

from __future__ import annotations

import pytest

from spark_group_source.fetch.position import ESTIMATED_RECORD_SIZE, MIN_FETCH, READ_AHEAD, RecordSizes
from spark_group_source.records.batches import find_record_batches
from tests.unit.records.build import TP, Record, batch

LIMIT = 4 * 2**20


def learned(*batches: bytes) -> RecordSizes:
    sizes = RecordSizes()
    sizes.observe(find_record_batches(TP, memoryview(b"".join(batches))))
    return sizes


def test_sizes_are_those_of_the_last_response() -> None:
    small = batch([Record(b"x" * 10)] * 5, 0)
    large = batch([Record(b"x" * 1000)] * 15, 5)
    sizes = learned(small, large)
    assert sizes.largest_batch == len(large)
    assert sizes.bytes_per_offset == (len(small) + len(large)) / 20
    sizes.observe(find_record_batches(TP, memoryview(small)))
    assert (sizes.largest_batch, sizes.bytes_per_offset) == (len(small), len(small) / 5)


def test_gaps_of_compaction_count_as_offsets() -> None:
    raw = batch([Record(b"x" * 10)], 0, last_delta=9)
    assert learned(raw).bytes_per_offset == len(raw) / 10


@pytest.mark.parametrize(("offsets", "asked"), [(1, MIN_FETCH), (100, 100 * ESTIMATED_RECORD_SIZE), (10**9, LIMIT)])
def test_the_size_is_estimated_before_the_first_response(offsets: int, asked: int) -> None:
    assert RecordSizes().fetch_bytes(offsets, LIMIT, MIN_FETCH) == asked


@pytest.mark.parametrize(
    ("largest_batch", "per_offset", "offsets", "asked"),
    [
        # A small range and the next ones.
        (200, 100, 100, READ_AHEAD * 10_000),
        (3000, 100, 1, READ_AHEAD * 3000),
        # The next ones are small: one more shows whether a header is right.
        (200, 100, 3, 600),
        # Not more than the least fetch for later ranges, but the whole of a record batch.
        (16_000, 100, 10, MIN_FETCH // 16_000 * 16_000),
        (260_000, 1000, 10, 260_000),
        # A large range: what is left, in whole record batches.
        (16_000, 100, 5_000, 512_000),
        (16_000, 100, 10**9, LIMIT // 16_000 * 16_000),
        # A record batch larger than the limit: the broker sends it if it is the first.
        (8_000_000, 100, 10**9, LIMIT),
    ],
)
def test_a_fetch_asks_for_whole_record_batches_of_what_is_left(
    largest_batch: int, per_offset: float, offsets: int, asked: int
) -> None:
    assert RecordSizes(per_offset, largest_batch).fetch_bytes(offsets, LIMIT, MIN_FETCH) == asked
