"""Decoding gives a row for each record in the requested range, with its values, and no other rows. Isolation levels
hide whole record batches, as in Kafka's consumer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from kafka.record import MemoryRecordsBuilder

from spark_group_source.errors import CorruptRecords, UnsupportedRecords
from spark_group_source.offsets import TopicPartition
from spark_group_source.records.batches import PartitionRecords, find_record_batches
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.records.responses import DecodeLimits, ResponseBatches
from spark_group_source.wire.frames import MAX_FRAME
from tests.unit.records.build import HEADER, TP, Record, batch, decoded, framed, marker, part, resealed


def in_batches(raw: bytes, **limits: int) -> list[pa.RecordBatch]:
    return list(Decoder(ALL_COLUMNS, read_committed=False, limits=DecodeLimits(**limits)).decode([part(raw)]))


@pytest.mark.parametrize("codec", range(5))
def test_arrow_batches_stay_near_the_size_of_a_decode_unit(codec: int) -> None:
    found = in_batches(batch([Record(b"x" * 1000)] * 100, codec=codec), unit_bytes=10_000)
    assert sum(each.num_rows for each in found) == 100
    assert max(each.num_rows for each in found) <= 10


def test_decode_units_of_many_record_batches_stay_below_their_size() -> None:
    raw = b"".join(batch([Record(bytes(100))], offset, codec=offset % 2 * 3) for offset in range(50))
    batches = ResponseBatches([part(raw)], read_committed=False, check_crcs=True, limits=DecodeLimits(unit_bytes=4000))
    sizes = [len(each.memory) for each in batches.decode_units()]
    assert max(sizes) <= 1000 < min(sizes) * 2


def test_arrow_batches_have_no_more_rows_than_the_limit() -> None:
    raw = batch([Record(b"v")] * 10) + batch([Record(b"v")] * 4, 10)
    assert [each.num_rows for each in in_batches(raw, rows=4)] == [4, 4, 2, 4]


def test_positions_in_a_decode_unit_fit_in_32_bits() -> None:
    """Arrow's binary arrays have no larger positions. Uncompressed records are decoded in the response itself."""
    limits = DecodeLimits()
    assert max(limits.unit_bytes + limits.batch_bytes, MAX_FRAME) < 2**31


def test_records_of_several_partitions_keep_their_topic_and_partition() -> None:
    def at(topic: str, partition: int, count: int) -> PartitionRecords:
        raw = batch([Record(b"v")] * count, 5) if count else b""
        return PartitionRecords(find_record_batches(TopicPartition(topic, partition), memoryview(raw)), 0, 100)

    table = decoded(at("a", 0, 2), at("größe", 1, 1), at("empty", 2, 0), at("a", 7, 2))
    assert table["topic"].to_pylist() == ["a", "a", "größe", "a", "a"]
    assert table["partition"].to_pylist() == [0, 0, 1, 7, 7]
    assert table["offset"].to_pylist() == [5, 6, 5, 5, 6]


def test_a_header_key_that_is_not_utf8_is_read_as_in_java() -> None:
    """The expected texts are from ``new String(bytes, UTF_8)`` of Java 17."""
    for key, text in (
        (b"a\xff", "a\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
        (b"\xed\xa0\x80a", "\ufffda"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
    ):
        name = "\x01" * len(key)
        raw = resealed(batch([Record(b"v", headers=[(name, b"w")])]).replace(name.encode(), key))
        assert decoded(part(raw))["headers"].to_pylist() == [[{"key": text, "value": b"w"}]]


def test_key_and_value_are_available_as_text() -> None:
    schema = arrow_schema(["value", "key"], ["value", "key"])
    raw = batch([Record("h\u00e9llo".encode(), b"k"), Record(None, b""), Record(b"", None)])
    table = decoded(part(raw), schema=schema)
    assert table.schema == schema, "in its order"
    assert [(row["value"], row["key"]) for row in table.to_pylist()] == [("h\u00e9llo", "k"), (None, ""), ("", None)]
    mixed = decoded(part(raw), schema=arrow_schema(["key", "value"], ["key"]))
    assert mixed.to_pylist()[0] == {"key": "k", "value": "h\u00e9llo".encode()}


@pytest.mark.parametrize("column", ["key", "value"])
def test_the_error_for_invalid_utf8_has_the_offset_and_not_the_bytes(column: str) -> None:
    for bad in (b"\xff", b"ab\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"):
        damaged = Record(b"v", bad) if column == "key" else Record(bad, b"k")
        raw = batch([Record(b"fine", b"fine"), Record(None, None), damaged], 40)
        with pytest.raises(UnsupportedRecords, match=rf"topic-3 .*at offset 42 a {column} that is not UTF-8") as error:
            decoded(part(raw), schema=arrow_schema(["key", "value"], ["key", "value"]))
        assert "fine" not in str(error.value)
        other = "key" if column == "value" else "value"
        assert decoded(part(raw), schema=arrow_schema(["key", "value"], [other])).num_rows == 3


@pytest.mark.parametrize("schema", [pa.schema([]), pa.schema([pa.field("topic", pa.binary())])], ids=["none", "type"])
def test_a_schema_with_other_columns_is_an_error(schema: pa.Schema) -> None:
    with pytest.raises(ValueError, match="not columns of a record"):
        Decoder(schema, read_committed=False)


def test_a_timestamp_beyond_sparks_range_is_an_error_only_with_the_timestamp_column() -> None:
    for millis in (2**60, -(2**60)):
        raw = batch([Record(b"a", timestamp=millis)])
        with pytest.raises(UnsupportedRecords, match=f" {millis} ms"):
            decoded(part(raw))
        assert decoded(part(raw), schema=arrow_schema(["value"]))["value"].to_pylist() == [b"a"]
    # -1 is a missing timestamp, as with Spark's ``format("kafka")``.
    for millis in (2**63 // 1000 - 1, -(2**63) // 1000 + 1, -1):
        table = decoded(part(batch([Record(b"a", timestamp=millis)])))
        assert table["timestamp"].cast(pa.int64()).to_pylist() == [millis * 1000]


def test_the_crc_is_checked_unless_it_is_disabled() -> None:
    raw = bytearray(batch([Record(b"value")], 7))
    raw[-3] ^= 1
    with pytest.raises(CorruptRecords, match=r"topic-3 at offset 7 .*CRC-32C"):
        decoded(part(raw))
    assert decoded(part(raw), check_crcs=False).num_rows == 1


def test_record_batches_outside_of_the_range_are_not_read() -> None:
    damaged = batch([Record(b"first")]).replace(b"first", b"wrong")
    raw = damaged + batch([Record(b"second")], 1) + batch([Record(b"third")], 2).replace(b"third", b"wrong")
    assert decoded(part(raw, 1, 2))["value"].to_pylist() == [b"second"]


def test_without_visible_records_there_is_no_arrow_batch() -> None:
    assert list(Decoder(ALL_COLUMNS, read_committed=False).decode([part(marker(0, 1, commit=True)), part(b"")])) == []
    assert list(Decoder(ALL_COLUMNS, read_committed=False).decode([])) == []


def test_decompressing_to_more_than_the_limit_is_unsupported() -> None:
    for codec in range(1, 5):
        raw = batch([Record(bytes(300_000))], codec=codec)
        assert decoded(part(raw), limits=DecodeLimits(batch_bytes=400_000)).num_rows == 1
        with pytest.raises(UnsupportedRecords, match="topic-3 at offset 0"):
            decoded(part(raw), limits=DecodeLimits(batch_bytes=200_000))


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
    found = part(framed(FIRST, b"", 0))
    assert found.batches.next_offset == 12
    assert decoded(found).num_rows == 0


def data(offset: int, producer: int) -> bytes:
    return batch([Record(b"%d" % offset)], offset, producer=producer, transactional=True)


def offsets(raw: bytes, aborted: list[tuple[int, int]], start: int = 0) -> list[int]:
    found: list[int] = decoded(part(raw, start, aborted=aborted), read_committed=True)["offset"].to_pylist()
    return found


INTERLEAVED = [
    *(data(0, 1), data(1, 2), batch([Record(b"plain")], 2), data(3, 1), marker(4, 1, commit=False)),
    *(data(5, 1), marker(6, 1, commit=True), marker(7, 2, commit=True), data(8, 1)),
]


@pytest.mark.parametrize(
    ("log", "aborted", "start", "expected"),
    [
        (INTERLEAVED, [(1, 0)], 0, [1, 2, 5, 8]),
        (INTERLEAVED, [], 0, [0, 1, 2, 3, 5, 8]),
        (INTERLEAVED, [(1, 8)], 0, [0, 1, 2, 3, 5]),  # records before the first offset of an aborted transaction
        (INTERLEAVED, [(1, 8), (1, 0)], 0, [1, 2, 5]),  # in any order
        (INTERLEAVED, [(1, 0)], 5, [5, 8]),  # the marker before the range ends the transaction
        # The list names producers whose next marker is an ABORT; a COMMIT marker does not end the transaction.
        ([data(0, 1), marker(1, 1, commit=True), data(2, 1)], [(1, 0)], 0, []),
        # Compaction keeps the record batch for the state of its producer, and removes the marker.
        ([data(0, 1), framed(marker(1, 1, commit=False), b"", 0), data(2, 1)], [(1, 0)], 0, []),
        # A record batch of the producer outside of its transaction.
        ([batch([Record(b"v")], 0, producer=1), data(1, 1)], [(1, 0)], 0, [0]),
    ],
)
def test_an_aborted_transaction_is_skipped_to_its_marker(
    log: list[bytes], aborted: list[tuple[int, int]], start: int, expected: list[int]
) -> None:
    assert offsets(b"".join(log), aborted, start) == expected


def test_partitions_do_not_share_their_aborted_transactions() -> None:
    raw = data(0, 1)
    table = decoded(part(raw, aborted=[(1, 0)]), part(raw), part(raw, aborted=[(2, 0)]), read_committed=True)
    assert table.num_rows == 2


def test_the_crc_of_a_marker_is_checked() -> None:
    damaged = marker(1, 1, commit=False)[:-1] + b"\x01"
    with pytest.raises(CorruptRecords, match=r"topic-3 at offset 1 .*CRC-32C"):
        offsets(data(0, 1) + damaged, [(1, 0)])


def test_an_incomplete_marker_is_corrupt() -> None:
    whole = marker(1, 1, commit=False)
    for left in range(1, 9):
        with pytest.raises(CorruptRecords, match="topic-3 at offset 1"):
            offsets(data(0, 1) + framed(whole, whole[HEADER : HEADER + left]), [(1, 0)])
