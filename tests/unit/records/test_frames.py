"""Borders of batches, progress, and what is not read."""

from __future__ import annotations

import pytest
from kafka.record import MemoryRecordsBuilder

from spark_group_source.errors import CorruptRecords, UnsupportedRecords
from spark_group_source.records.frames import frames
from tests.unit.records.build import TP, Record, batch, decoded, marker, part

FIRST, SECOND = batch([Record(b"a"), Record(b"b")], 10), batch([Record(b"c" * 100)], 20)


@pytest.mark.parametrize("kept", range(len(SECOND)))
def test_cut_last_batch_is_left_for_the_next_fetch(kept: int) -> None:
    found = part(FIRST + SECOND[:kept])
    assert (len(found.frames), found.frames.next_offset, found.frames.wanted_bytes) == (1, 12, None)
    assert decoded(found)["offset"].to_pylist() == [10, 11]


@pytest.mark.parametrize("kept", range(len(SECOND)))
def test_cut_only_batch_says_how_much_to_fetch(kept: int) -> None:
    found = part(SECOND[:kept])
    wanted = len(SECOND) if kept >= 17 else None
    assert (len(found.frames), found.frames.next_offset, found.frames.wanted_bytes) == (0, None, wanted)
    assert decoded(found).num_rows == 0


def test_next_offset_passes_markers_and_compacted_ends() -> None:
    assert part(FIRST + marker(12, 1, commit=True)).frames.next_offset == 13
    assert part(batch([Record(b"a")], 10, last_delta=7)).frames.next_offset == 18


def test_batch_that_ends_before_it_begins_is_damage() -> None:
    raw = bytearray(FIRST)
    raw[23:27] = b"\xff" * 4
    with pytest.raises(CorruptRecords, match="last offset delta is -1"):
        part(bytes(raw)).frames.next_offset  # noqa: B018
    with pytest.raises(CorruptRecords, match="topic-3 at offset 10"):
        decoded(part(bytes(raw)), check_crcs=False)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_with_a_way_out(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic, 0, 1000)
    builder.append(5, None, b"v")
    builder.close()
    with pytest.raises(UnsupportedRecords, match=rf"message format v{magic}.*MirrorMaker"):
        frames(TP, memoryview(builder.buffer()))


def test_later_message_format_is_refused() -> None:
    with pytest.raises(UnsupportedRecords, match="topic-3 at offset 10 is in message format v3"):
        part(FIRST[:16] + b"\x03" + FIRST[17:])


@pytest.mark.parametrize("length", [0, 48, -1, -(2**31)])
def test_impossible_length_is_damage(length: int) -> None:
    with pytest.raises(CorruptRecords, match=f"its length is {length}"):
        part(FIRST[:8] + length.to_bytes(4, "big", signed=True) + FIRST[12:])


def test_empty_batch_is_progress_without_rows() -> None:
    """Compaction leaves headers for the state of producers."""
    empty = bytearray(FIRST[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    found = part(bytes(empty))
    assert found.frames.next_offset == 12
    assert decoded(found).num_rows == 0
