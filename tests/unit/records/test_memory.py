"""The memory of decoding is limited, whatever a producer sends."""

from __future__ import annotations

import resource
import sys
import tracemalloc

import pyarrow as pa
import pytest

from spark_group_source.errors import CorruptRecords, UnsupportedRecords
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.records.responses import DecodeLimits
from tests.unit.new_process import run_python
from tests.unit.records.build import HEADER, Record, batch, decoded, framed, part, resealed

MAX_MIB = 110
ZSTD = 4
TINY = b"\x0c\0\0\0\1\1\0"
"""The smallest record: only zeros, and null as key and value."""
HEADERS = b"\xae\x1f\0\0\0\1\1\xd0\x0f" + b"\0\1" * 1000
"""A record with only a thousand empty headers."""


def bomb(record: bytes, count: int) -> bytes:
    """A record batch of ``count`` equal records, compressed to a few hundred kB."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(0, count, 10_000):
            stream.write(record * 10_000)
    return framed(batch([Record(b"")], codec=ZSTD, attributes=ZSTD), sink.getvalue().to_pybytes(), count)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def measured(record: bytes, count: int, column: str) -> None:
    """Prints the number of rows of a bomb, and the growth of memory in MiB; runs in a separate process."""
    raw = bomb(record, count)
    decoder = Decoder(arrow_schema([column]), read_committed=False)
    # The imports are done before the measurement.
    assert list(decoder.decode([part(batch([Record(b"v", headers=[("h", b"")])]))]))
    before = peak_mib()
    found = sum(each.num_rows for each in decoder.decode([part(raw)]))
    print(found, round(peak_mib() - before))


@pytest.mark.parametrize(
    ("record", "count", "column"), [("TINY", 2_000_000, "offset"), ("HEADERS", 10_000, "headers")], ids=str
)
def test_a_bomb_of_small_records_takes_little_memory(record: str, count: int, column: str) -> None:
    code = f"from tests.unit.records import test_memory as t; t.measured(t.{record}, {count}, '{column}')"
    found, grown = map(int, run_python(code).stdout.split())
    assert found == count
    assert grown < MAX_MIB


SOME = [Record(b"v%d" % number, headers=[("h", b"w")] * (number % 3)) for number in range(200)]


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_wrong_count_is_corrupt_in_whole_and_split_record_batches(codec: int) -> None:
    raw = batch(SOME, codec=codec)
    for wrong in (1, 199, 201, 2**31 - 1):
        for unit_bytes in (100, 2**20):
            with pytest.raises(CorruptRecords, match="topic-3 at offset 0"):
                decoded(part(framed(raw, raw[HEADER:], wrong)), limits=DecodeLimits(unit_bytes=unit_bytes))


def test_a_record_that_claims_gigabytes_takes_no_more_memory_than_its_record_batch() -> None:
    raw = bytearray(batch(SOME))
    raw[HEADER : HEADER + 5] = b"\xfe\xff\xff\xff\x0f"  # the length 2**31 - 1
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords, match="topic-3 at offset 0"):
            decoded(part(resealed(raw)), limits=DecodeLimits(unit_bytes=500))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_rows_with_many_headers_come_in_several_arrow_batches() -> None:
    found = Decoder(ALL_COLUMNS, read_committed=False, limits=DecodeLimits(headers=10)).decode([part(batch(SOME))])
    counts = [sum(len(each or ()) for each in rows["headers"].to_pylist()) for rows in found]
    assert sum(counts) == sum(len(each.headers) for each in SOME)
    assert max(counts) <= 10


def test_a_record_with_too_many_headers_is_an_error_only_with_the_headers_column() -> None:
    raw = batch([*SOME, Record(b"v", headers=[("h", b"")] * 11)])
    with pytest.raises(UnsupportedRecords, match="at offset 200 a record with 11 headers, and the maximum is 10"):
        decoded(part(raw), limits=DecodeLimits(headers=10))
    assert decoded(part(raw), schema=arrow_schema(["value"]), limits=DecodeLimits(headers=10)).num_rows == 201
