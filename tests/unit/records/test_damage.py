"""Without the checksum, damaged bytes give rows or a RecordsError, never another exception and never a hang."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from kafka.record.util import encode_varint

from spark_group_source.errors import CorruptRecords, RecordsError, UnsupportedRecords
from spark_group_source.records.batches import BatchLocation, PartitionRecords, find_record_batches
from spark_group_source.records.codecs import BatchBody
from spark_group_source.records.columns import arrow_schema
from spark_group_source.records.responses import DecodeLimits
from tests.unit.records.build import HEADER, TP, Record, batch, decoded, framed, marker, part

RECORDS = [
    Record(b"value", b"key", 1_700_000_000_000, [("h", b"1"), ("n", None)]),
    Record(None, b"", 1_700_000_100_000),
    Record(b"x" * 200, None, 1_700_000_000_001, [("i", b"")]),
]
SOME = batch(RECORDS, 5)
LOCATION = BatchLocation(TP, 5)


def flipped(raw: bytes, bit: int) -> bytes:
    found = bytearray(raw)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


def test_every_flipped_bit_of_records_gives_rows_or_a_records_error() -> None:
    raw = batch(RECORDS[:2], 5)
    for bit in range(HEADER * 8, 8 * len(raw)):
        try:
            decoded(part(flipped(raw, bit)), check_crcs=False, limits=DecodeLimits(batch_bytes=2**20))
        except RecordsError as error:
            assert "topic-3 at offset" in str(error)  # noqa: PT017 - some damage gives rows


@pytest.mark.parametrize("codec", range(5))
def test_every_truncation_with_a_matching_length_is_corrupt(codec: int) -> None:
    raw = batch(RECORDS, 5, codec=codec)
    for size in range(HEADER, len(raw)):
        with pytest.raises(CorruptRecords, match="topic-3 at offset 5"):
            decoded(part(framed(raw, raw[HEADER:size])))


@pytest.mark.parametrize(("at", "start"), [(23, 0), (23, 9), (57, 0)], ids=["delta", "delta before range", "count"])
def test_negative_delta_or_count_does_not_skip_the_batch(at: int, start: int) -> None:
    raw = SOME[:at] + b"\xff" * 4 + SOME[at + 4 :]
    with pytest.raises(CorruptRecords, match="topic-3 at offset 5"):
        decoded(part(raw, start), check_crcs=False)


def record(*, key: int = -1, value: int = -1, headers: int = 0, offset: int = 0, rest: bytes = b"") -> bytes:
    body = bytearray(2)
    for number in (offset, key, value, headers):
        encode_varint(number, body.append)
    length = bytearray()
    encode_varint(len(body) + len(rest), length.append)
    return bytes(length + body + rest)


def alone(*bodies: bytes) -> PartitionRecords:
    """A record batch of these records."""
    return part(framed(batch([Record(b"")], 5), b"".join(bodies), len(bodies)))


def test_impossible_lengths_and_counts_are_corrupt() -> None:
    bodies = [
        *(record(key=-2), record(value=-2), record(headers=-1), record(offset=-1), record(offset=1)),
        *(record(key=1), record(value=1), record(key=2**62), record(value=2**63 - 1), record(value=-(2**63))),
        *(record(headers=1), record(headers=2**40), record(rest=b"x")),
        *(record(headers=1, rest=each) for each in (b"\x01\x01", b"\x00\x03", b"\x81\x00", b"\x00\x04a", b"\x00\x01x")),
        record(headers=1, rest=b"\x00" + b"\x80" * 20),
        b"\xff" * 20,
        b"\x01" + record(),
        b"\xfe" + b"\xff" * 8 + b"\x01" + record(),
        b"\xfe" + b"\xff" * 8 + b"\x7f" + record(),
        record()[:-1],
        record() + b"\x00",
    ]
    # Headers of many records are decoded in another way than headers of few.
    for others in ([], [record(headers=1, rest=b"\x02a\x02b")] * 20):
        assert decoded(alone(*others, record())).num_rows == len(others) + 1
        for body in bodies:
            with pytest.raises(CorruptRecords, match="topic-3 at offset 5"):
                decoded(alone(*others, body))
    # The count of headers is checked without their column, too.
    with pytest.raises(CorruptRecords, match="topic-3 at offset 5"):
        decoded(alone(record(headers=2, rest=b"\x00\x01\x00")), schema=arrow_schema(["value"]))


def test_an_error_names_the_damaged_record_batch_and_not_its_neighbour() -> None:
    damaged = bytearray(SOME)
    damaged[HEADER] += 2  # the first record takes a byte of the second
    raw = batch(RECORDS, 2) + damaged + batch(RECORDS, 8)
    with pytest.raises(CorruptRecords, match="topic-3 at offset 5"):
        decoded(part(bytes(raw)), check_crcs=False)


def test_very_many_headers_in_one_record_are_decoded() -> None:
    body = record(headers=200_000, rest=b"\x00\x01" * 200_000)
    assert len(decoded(alone(body))["headers"][0]) == 200_000


def test_an_unknown_codec_is_unsupported() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(UnsupportedRecords, match=f"codec {codec}"):
            decoded(part(batch(RECORDS, 5, attributes=codec)))


XERIAL = b"\x82SNAPPY\x00"


def test_snappy_java_frames_are_read_with_any_version_numbers() -> None:
    """Some producers write them little-endian (kafka-python issue 2414)."""
    blocks = [pa.Codec("snappy").compress(each, asbytes=True) for each in (b"one ", b"two")]
    for versions in (struct.pack(">ii", 1, 1), struct.pack("<ii", 1, 1)):
        frames = XERIAL + versions + b"".join(struct.pack(">i", len(each)) + each for each in blocks)
        records = bytearray(100)
        size = BatchBody(2, memoryview(frames), 100, LOCATION).read_into(memoryview(records))
        assert records[:size] == b"one two"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x80", b"\xff" * 10, b"\xff\xff\xff\x7f\x00", XERIAL + bytes(8) + b"\0\0", XERIAL + bytes(8) + b"\xff" * 4],
)
def test_damaged_snappy_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptRecords, match="snappy data cannot be decompressed"):
        BatchBody(2, memoryview(payload), 2**30, LOCATION).read_into(memoryview(bytearray(100)))


SHAPES = {
    "plain": lambda at: batch(RECORDS, at),
    "compressed": lambda at: batch(RECORDS, at, codec=3),
    "transactional": lambda at: batch(RECORDS, at, transactional=True, producer=1),
    "aborted": lambda at: batch(RECORDS[:2], at, transactional=True, producer=1) + marker(at + 2, 1, commit=False),
}


@pytest.mark.parametrize(("shape", "damaged"), [*((each, 1) for each in SHAPES), ("plain", 0), ("plain", 2)])
def test_each_flipped_bit_of_a_header_gives_the_right_rows_or_an_error(shape: str, damaged: int) -> None:
    batches = [SHAPES[shape](at) for at in (0, 3, 6)]
    aborted = [(1, 0), (1, 3), (1, 6)] if shape == "aborted" else []
    right = decoded(part(b"".join(batches), aborted=aborted), read_committed=True)["offset"].to_pylist()
    assert right == ([] if shape == "aborted" else [*range(9)])
    errors = 0
    for bit in range(HEADER * 8):
        raw = b"".join([*batches[:damaged], flipped(batches[damaged], bit), *batches[damaged + 1 :]])
        try:
            found = find_record_batches(TP, memoryview(raw))
            reliable = found.reliable(0, 9, 9) if len(found) else found
            rows = decoded(PartitionRecords(reliable, 0, 9, aborted), read_committed=True)["offset"].to_pylist()
        except RecordsError as error:
            assert "topic-3 at offset" in str(error)  # noqa: PT017
            errors += 1
            continue
        read_up_to = reliable.next_offset or 0
        assert rows == [each for each in right if each < read_up_to], f"bit {bit}"
        in_length, in_epoch = bit // 8 in range(8, 12), bit // 8 in range(12, 16)
        left_to_next_fetch = read_up_to <= 3 * damaged
        if left_to_next_fetch and not in_length and not in_epoch:
            alone = find_record_batches(TP, memoryview(flipped(batches[damaged], bit)))
            with pytest.raises(CorruptRecords, match="high watermark 9"):
                alone.reliable(read_up_to, 9, 9)
            errors += 1
        assert in_epoch or left_to_next_fetch, f"bit {bit} is not noticed"
    assert errors > 400


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_last_offset_delta_that_hides_the_next_record_batch_is_noticed_without_checksums(damaged: int) -> None:
    batches = [batch(RECORDS, at) for at in (0, 3, 6)]
    for bit in range(23 * 8, 27 * 8):
        raw = b"".join([*batches[:damaged], flipped(batches[damaged], bit), *batches[damaged + 1 :]])
        with pytest.raises(CorruptRecords, match="topic-3 at offset"):
            decoded(
                PartitionRecords(find_record_batches(TP, memoryview(raw)).reliable(0, 9, 9), 0, 9), check_crcs=False
            )


def test_damage_behind_the_range_does_not_matter() -> None:
    for harm in (0, 7, 11, 16, 22, 26, 60):
        raw = bytearray(SOME)
        raw[harm] ^= 0xFF
        found = find_record_batches(TP, memoryview(batch(RECORDS, 0) + batch(RECORDS[:2], 3) + raw)).reliable(0, 5, 8)
        assert decoded(PartitionRecords(found, 0, 5))["offset"].to_pylist() == [0, 1, 2, 3, 4]


def test_the_last_record_batch_behind_a_gap_waits_for_its_successor() -> None:
    """A wrong base offset looks like a gap, until the next record batch overlaps."""
    first, moved, after = batch(RECORDS, 0), batch(RECORDS, 19), batch(RECORDS, 6)
    found = find_record_batches(TP, memoryview(first + moved))
    assert found.reliable(0, 50, 40).next_offset == 3
    assert found.reliable(0, 50, 22).next_offset == 22, "it is the last one of the log"
    with pytest.raises(CorruptRecords, match="topic-3 at offset 3 is damaged: its header contradicts"):
        find_record_batches(TP, memoryview(moved + after)).reliable(3, 50, 40)
    compacted = find_record_batches(TP, memoryview(moved))
    assert compacted.reliable(3, 50, 40).next_offset == 22


def test_records_behind_an_older_high_watermark_are_healthy() -> None:
    """A broker reads its high watermark before the records."""
    found = find_record_batches(TP, memoryview(batch(RECORDS, 0) + batch(RECORDS, 3) + batch(RECORDS, 6)))
    for mark in range(10):
        assert found.reliable(0, 9, mark).next_offset == 9
        assert found.reliable(1, 9, mark).next_offset == 9, "the range begins within a record batch"
    confirmed = find_record_batches(TP, memoryview(batch(RECORDS, 6) + batch(RECORDS, 9)))
    assert confirmed.reliable(3, 12, 5).next_offset == 12, "the successor of the one behind the gap is there"


def test_a_lone_record_batch_behind_a_gap_the_range_and_the_high_watermark_is_corrupt() -> None:
    with pytest.raises(CorruptRecords, match="offset 19 is damaged: it ends at 22, behind the high watermark 20"):
        find_record_batches(TP, memoryview(batch(RECORDS, 19))).reliable(3, 21, 20)
    planned = find_record_batches(TP, memoryview(batch(RECORDS, 19))).reliable(3, 22, 20)
    assert planned.next_offset == 22, "the high watermark was there when the range was planned"


def test_record_batches_before_the_requested_offset_are_left_out() -> None:
    earlier, wanted = batch(RECORDS, 2) + batch(RECORDS, 5), batch(RECORDS, 8)
    assert not len(find_record_batches(TP, memoryview(earlier)).reliable(8, 12, 12)), "they tell nothing of offset 8"
    for start in (8, 9):
        found = find_record_batches(TP, memoryview(earlier + wanted)).reliable(start, 11, 12)
        assert decoded(PartitionRecords(found, start, 11))["offset"].to_pylist() == [*range(start, 11)]


def test_a_wrong_base_offset_before_the_requested_one_hides_nothing() -> None:
    """Offsets 5 to 7 say that they are 2 to 4, and what follows looks like a gap of compaction."""
    raw = batch(RECORDS, 2) + batch(RECORDS, 8)
    with pytest.raises(CorruptRecords, match="topic-3 at offset 5 is damaged: its header contradicts"):
        find_record_batches(TP, memoryview(raw)).reliable(5, 11, 11)


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_count_that_hides_records_is_corrupt(codec: int, check_crcs: bool) -> None:
    raw = batch(RECORDS, 5, codec=codec)
    for count, says in (
        (0, r"bytes of records, and a count of 0"),
        (2, "2 records do not fill"),
        (4, "4 records do not fill"),
    ):
        with pytest.raises(CorruptRecords, match=f"topic-3 at offset 5.*{says}"):
            decoded(part(framed(raw, raw[HEADER:], count)), check_crcs=check_crcs)


def test_an_empty_record_batch_that_compaction_kept_is_healthy() -> None:
    empty = framed(batch(RECORDS, 3, producer=7), b"", 0)
    raw = batch(RECORDS, 0) + empty + batch(RECORDS, 6)
    assert decoded(part(raw))["offset"].to_pylist() == [0, 1, 2, 6, 7, 8]
    found = find_record_batches(TP, memoryview(empty)).reliable(3, 6, 6)
    assert (decoded(PartitionRecords(found, 3, 6)).num_rows, found.next_offset) == (0, 6)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_names_the_setting_of_the_topic(magic: int) -> None:
    old = SOME[:16] + bytes([magic]) + SOME[17:]
    with pytest.raises(UnsupportedRecords, match=f"message format v{magic}.*message.format.version.*copy them"):
        find_record_batches(TP, memoryview(old))


def test_an_uncompressed_record_batch_above_the_limit_is_not_said_to_decompress() -> None:
    with pytest.raises(UnsupportedRecords, match="bytes, more than 100"):
        decoded(part(batch([Record(b"x" * 300)], 0)), limits=DecodeLimits(unit_bytes=50, batch_bytes=100))
