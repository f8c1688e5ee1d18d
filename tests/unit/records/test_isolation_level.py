"""Isolation levels hide whole record batches, as in Kafka's consumer."""

from __future__ import annotations

import pytest

from spark_group_source.errors import CorruptRecords
from tests.unit.records.build import Record, batch, decoded, marker, part, resealed


def data(offset: int, producer: int, count: int = 1) -> bytes:
    return batch([Record(b"%d" % offset)] * count, offset, producer=producer, transactional=True)


def offsets(raw: bytes, aborted: list[tuple[int, int]], start: int = 0, read_committed: bool = True) -> list[int]:
    found: list[int] = decoded(part(raw, start, aborted=aborted), read_committed=read_committed)["offset"].to_pylist()
    return found


INTERLEAVED = b"".join(
    [
        data(0, 1),
        data(1, 2),
        batch([Record(b"plain")], 2),
        data(3, 1),
        marker(4, 1, commit=False),
        data(5, 1),
        marker(6, 1, commit=True),
        marker(7, 2, commit=True),
        data(8, 1),
    ]
)


@pytest.mark.parametrize(
    ("aborted", "start", "expected"),
    [
        ([(1, 0)], 0, [1, 2, 5, 8]),
        ([], 0, [0, 1, 2, 3, 5, 8]),
        ([(1, 8)], 0, [0, 1, 2, 3, 5]),  # records before the first offset of an aborted transaction
        ([(1, 8), (1, 0)], 0, [1, 2, 5]),  # in any order
        ([(1, 0)], 5, [5, 8]),  # the marker before the range ends the transaction
    ],
)
def test_an_aborted_producer_is_skipped_until_its_marker(
    aborted: list[tuple[int, int]], start: int, expected: list[int]
) -> None:
    assert offsets(INTERLEAVED, aborted, start) == expected


def test_a_commit_marker_does_not_end_an_aborted_transaction() -> None:
    """The list names producers whose next marker is an ABORT; a COMMIT marker does not end the transaction."""
    raw = data(0, 1) + marker(1, 1, commit=True) + data(2, 1)
    assert offsets(raw, [(1, 0)]) == []


def test_a_record_batch_outside_of_the_producers_transaction_is_read() -> None:
    raw = batch([Record(b"v")], 0, producer=1) + data(1, 1)
    assert offsets(raw, [(1, 0)]) == [0]


def test_partitions_do_not_share_their_aborted_transactions() -> None:
    raw = data(0, 1)
    table = decoded(part(raw, aborted=[(1, 0)]), part(raw), part(raw, aborted=[(2, 0)]), read_committed=True)
    assert table.num_rows == 2


def test_the_crc_of_a_marker_is_checked() -> None:
    damaged = marker(1, 1, commit=False)[:-1] + b"\x01"
    with pytest.raises(CorruptRecords, match=r"topic-3 at offset 1 .*CRC-32C"):
        offsets(data(0, 1) + damaged, [(1, 0)])


def test_an_empty_control_batch_is_not_a_marker() -> None:
    """Compaction keeps the record batch for the state of its producer, and removes the marker."""
    empty = bytearray(marker(1, 1, commit=False)[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    raw = data(0, 1) + resealed(empty) + data(2, 1)
    assert offsets(raw, [(1, 0)]) == []


def test_an_incomplete_marker_is_corrupt() -> None:
    for left in range(1, 9):
        cut = bytearray(marker(1, 1, commit=False))[: 61 + left]
        cut[8:12] = (len(cut) - 12).to_bytes(4, "big")
        with pytest.raises(CorruptRecords, match="topic-3 at offset 1"):
            offsets(data(0, 1) + resealed(cut), [(1, 0)])
