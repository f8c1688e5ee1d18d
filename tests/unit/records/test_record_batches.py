"""Boundaries of record batches, the next offset, and unsupported formats."""

from __future__ import annotations

import pytest
from kafka.record import MemoryRecordsBuilder

from spark_group_source.errors import CorruptRecords, UnsupportedRecords
from spark_group_source.records.batches import find_record_batches
from tests.unit.records.build import TP, Record, batch, decoded, marker, part, resealed

FIRST, SECOND = batch([Record(b"a"), Record(b"b")], 10), batch([Record(b"c" * 100)], 20)


def test_an_incomplete_record_batch_is_left_for_the_next_fetch_and_alone_gives_the_size_to_fetch() -> None:
    for kept in range(len(SECOND)):
        found = part(FIRST + SECOND[:kept])
        assert (len(found.batches), found.batches.next_offset, found.batches.incomplete_batch_size) == (1, 12, None)
        assert decoded(found)["offset"].to_pylist() == [10, 11]
        alone = part(SECOND[:kept])
        wanted = len(SECOND) if kept >= 17 else None
        assert (len(alone.batches), alone.batches.next_offset, alone.batches.incomplete_batch_size) == (0, None, wanted)
        assert decoded(alone).num_rows == 0


def test_the_next_offset_is_after_markers_and_compacted_records() -> None:
    assert part(FIRST + marker(12, 1, commit=True)).batches.next_offset == 13
    assert part(batch([Record(b"a")], 10, last_delta=7)).batches.next_offset == 18


def test_a_record_batch_that_ends_before_it_starts_is_corrupt() -> None:
    raw = bytearray(FIRST)
    raw[23:27] = b"\xff" * 4
    with pytest.raises(CorruptRecords, match="last offset delta is -1"):
        part(bytes(raw)).batches.next_offset  # noqa: B018
    with pytest.raises(CorruptRecords, match="topic-3 at offset 10"):
        decoded(part(bytes(raw)), check_crcs=False)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_error_for_an_old_message_format_names_a_workaround(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic, 0, 1000)
    builder.append(5, None, b"v")
    builder.close()
    with pytest.raises(UnsupportedRecords, match=rf"message format v{magic}.*MirrorMaker"):
        find_record_batches(TP, memoryview(builder.buffer()))


def test_a_later_message_format_is_unsupported_and_an_impossible_length_corrupt() -> None:
    with pytest.raises(UnsupportedRecords, match="topic-3 at offset 10 is in message format v3"):
        part(FIRST[:16] + b"\x03" + FIRST[17:])
    for length in (0, 48, -1, -(2**31)):
        with pytest.raises(CorruptRecords, match=f"its length is {length}"):
            part(FIRST[:8] + length.to_bytes(4, "big", signed=True) + FIRST[12:])


def test_an_empty_record_batch_advances_the_offset_without_rows() -> None:
    """Compaction keeps the header for the state of the producer."""
    empty = bytearray(FIRST[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    found = part(resealed(empty))
    assert found.batches.next_offset == 12
    assert decoded(found).num_rows == 0
