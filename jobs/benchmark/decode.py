"""CPU time per record of the decoder alone, for several layouts of record batches: python jobs/benchmark/decode.py

Each layout is one Fetch response of about 4 MB. The decoder checks its checksums. The figure is the minimum CPU time of
several runs, so that other work on the machine has little effect.

``records/boundaries.py`` has constants that decide between two ways to find records. CPU time in ns a record with other
values of them:

====================== ==================== =================================== ======================
constant               values               layout                              ns a record
====================== ==================== =================================== ======================
_MAX_SEQUENTIAL_LANES  8, 32, 128, 256      100 B, record batches of 16 kB      63, 63, 64, 157
_MAX_SEQUENTIAL_LANES  8, 32, 128, 256      skewed sizes                        300, 281, 278, 281
_MIN_RECORDS_OF_BLOCK  0, 25, 100, all      8.3 kB                              2175, 1569, 1568, 1579
_MIN_RECORDS_OF_BLOCK  0, 25, 100, all      100 B and some of 10 kB             133, 135, 127, 198
_MAX_SPLIT_RECORD_SIZE 0, 400, 1200         100 B, record batches of 1 MB       151, 73, 73
_MAX_SPLIT_RECORD_SIZE 0, 400, 1200         20 to 2000 B                        251, 255, 299
_LANES_PER_SQRT        0.5, 1.3, 3          100 B, record batches of 256 kB     79, 72, 71
_LANES_PER_SQRT        0.5, 1.3, 3          1 B, record batches of 1 MB         72, 62, 67
====================== ==================== =================================== ======================
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from kafka.record.default_records import DefaultRecordBatchBuilder

# Replaces the directory of this file, whose modules would hide others of the same name.
sys.path[0] = str(Path(__file__).resolve().parents[2])
from spark_group_source.offsets import TopicPartition  # noqa: E402
from spark_group_source.records.batches import PartitionRecords, find_record_batches  # noqa: E402
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema  # noqa: E402
from spark_group_source.records.decode import Decoder  # noqa: E402

RESPONSE_BYTES = 4 * 2**20
DISTINCT_BYTES = 2**20
"""Distinct bytes of a response; the rest repeats them."""
KB = 2**10
RNG = random.Random(1)
BEGAN = 1_700_000_000_000
TP = TopicPartition("topic", 0)
COLUMNS = arrow_schema([name for name in ALL_COLUMNS.names if name != "headers"])
ZSTD = 4


class Layout(NamedTuple):
    """The sizes of the values, and the size of the record batches."""

    name: str
    batch_bytes: int
    sizes: Callable[[], Iterator[int]]
    codec: int = 0
    value: Callable[[int], bytes] = RNG.randbytes
    headers: tuple[tuple[str, bytes], ...] = ()


def always(size: int) -> Callable[[], Iterator[int]]:
    """Values of one size."""
    return lambda: repeat(size)


def one_large_in(others: int) -> Iterator[int]:
    """Values of 100 bytes, with one of 10 kB after each ``others``."""
    while True:
        yield from chain(repeat(100, others), [10_000])


def between(min_size: int, max_size: int) -> Callable[[], Iterator[int]]:
    """Values of all sizes in this range."""
    return lambda: (RNG.randint(min_size, max_size) for _ in repeat(None))


def small_integers(size: int) -> bytes:
    """A value of mostly zero bytes, which look like parts of records."""
    return b"".join(RNG.randrange(100).to_bytes(4, "little") for _ in range(size // 4))


LAYOUTS = [
    Layout("100 B, record batches of 16 kB", 16 * KB, always(100)),
    Layout("100 B, record batches of 256 kB", 256 * KB, always(100)),
    Layout("100 B, record batches of 1 MB", KB * KB, always(100)),
    Layout("100 B and one of 10 kB a response", 16 * KB, lambda: chain(repeat(100, 4500), [10_000], repeat(100))),
    Layout("100 B and one of 10 kB in 100, 256 kB", 256 * KB, lambda: one_large_in(100)),
    Layout("20 to 2000 B, record batches of 16 kB", 16 * KB, between(20, 2000)),
    Layout("20 to 2000 B, record batches of 1 MB", KB * KB, between(20, 2000)),
    Layout("1 B, record batches of 16 kB", 16 * KB, always(1)),
    Layout("1 B, record batches of 1 MB", KB * KB, always(1)),
    Layout("1 kB, record batches of 1 MB", KB * KB, always(1000)),
    Layout("10 kB, record batches of 1 MB", KB * KB, always(10_000)),
    Layout("10 kB, record batches of 128 kB", 128 * KB, always(10_000)),
    Layout("10 kB, record batches of 16 kB", 16 * KB, always(10_000)),
    Layout("9 kB, record batches of 200 kB", 200 * KB, always(9_000)),
    Layout("20 kB, record batches of 128 kB", 128 * KB, always(20_000)),
    Layout("1 kB, record batches of 256 kB", 256 * KB, always(1000)),
    Layout("skewed, mean 1 kB, 128 kB", 128 * KB, lambda: (int(RNG.lognormvariate(6, 1.4)) for _ in repeat(None))),
    Layout("100 B, zstd, record batches of 16 kB", 16 * KB, always(100), ZSTD),
    Layout("100 B, zstd, record batches of 1 MB", KB * KB, always(100), ZSTD),
    Layout("100 B of small integers, 256 kB", 256 * KB, always(100), value=small_integers),
    Layout("100 B with headers, 256 kB", 256 * KB, always(100), headers=(("trace", b"0123456789abcdef"),)),
]


def response(layout: Layout) -> tuple[bytes, int]:
    """The bytes of a response, and the number of its records."""
    sizes, built, records = layout.sizes(), b"", 0
    while len(built) < DISTINCT_BYTES:
        builder = DefaultRecordBatchBuilder(2, layout.codec, False, -1, -1, -1, layout.batch_bytes)
        delta = 0
        while builder.append(delta, BEGAN + delta // 8, None, layout.value(next(sizes)), list(layout.headers)):
            delta += 1
        batch = bytearray(builder.build())
        batch[:8] = records.to_bytes(8, "big")
        built += batch
        records += delta
    times = max(RESPONSE_BYTES // len(built), 1)
    return built * times, records * times


def min_ns(raw: bytes, runs: int) -> int:
    """The minimum CPU time to decode ``raw``, in nanoseconds."""
    decoder = Decoder(COLUMNS, read_committed=False)
    records = PartitionRecords(find_record_batches(TP, memoryview(raw)), 0, 2**62)
    times = []
    for _ in range(runs):
        before = time.process_time_ns()
        for _rows in decoder.decode([records]):
            pass
        times.append(time.process_time_ns() - before)
    return min(times)


def main() -> None:
    """Prints a line for each layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--only", default="", help="only layouts whose name contains this text")
    args = parser.parse_args()
    for layout in LAYOUTS:
        if args.only in layout.name:
            raw, records = response(layout)
            print(f"{layout.name:40}{records:9,} records{min_ns(raw, args.runs) / records:8.0f} ns each", flush=True)


if __name__ == "__main__":
    main()
