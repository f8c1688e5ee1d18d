"""CPU time per record of the decoder alone, for the layouts that producers write: python jobs/benchmark/decode.py

Each layout is one Fetch answer of about 4 MB whose checksums are compared. The figure is the least CPU time of several
runs, so that other work on the machine matters little.
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

# In place of the directory of this file, whose modules would hide others of the same name.
sys.path[0] = str(Path(__file__).resolve().parents[2])
from spark_group_source.offsets import TopicPartition  # noqa: E402
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema  # noqa: E402
from spark_group_source.records.decode import Decoder  # noqa: E402
from spark_group_source.records.record_batches import PartitionRecords, find_record_batches  # noqa: E402

ANSWER = 4 * 2**20
DISTINCT = 2**20
"""Bytes of an answer that differ; the rest repeats them."""
KB = 2**10
RNG = random.Random(1)
BEGAN = 1_700_000_000_000
TP = TopicPartition("topic", 0)
COLUMNS = arrow_schema([name for name in ALL_COLUMNS.names if name != "headers"])
ZSTD = 4


class Layout(NamedTuple):
    """Records of some sizes in batches of some size."""

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
    """Values of 100 bytes, and one of 10 kB behind so many."""
    while True:
        yield from chain(repeat(100, others), [10_000])


def between(least: int, most: int) -> Callable[[], Iterator[int]]:
    """Values of all sizes between."""
    return lambda: (RNG.randint(least, most) for _ in repeat(None))


def small_integers(size: int) -> bytes:
    """Mostly zero bytes, which look like parts of records."""
    return b"".join(RNG.randrange(100).to_bytes(4, "little") for _ in range(size // 4))


LAYOUTS = [
    Layout("100 B, batches of 16 kB", 16 * KB, always(100)),
    Layout("100 B, batches of 256 kB", 256 * KB, always(100)),
    Layout("100 B, batches of 1 MB", KB * KB, always(100)),
    Layout("100 B and one of 10 kB an answer", 16 * KB, lambda: chain(repeat(100, 4500), [10_000], repeat(100))),
    Layout("100 B and one of 10 kB in 100, 256 kB", 256 * KB, lambda: one_large_in(100)),
    Layout("20 to 2000 B, batches of 16 kB", 16 * KB, between(20, 2000)),
    Layout("20 to 2000 B, batches of 1 MB", KB * KB, between(20, 2000)),
    Layout("1 B, batches of 16 kB", 16 * KB, always(1)),
    Layout("1 B, batches of 1 MB", KB * KB, always(1)),
    Layout("1 kB, batches of 1 MB", KB * KB, always(1000)),
    Layout("10 kB, batches of 1 MB", KB * KB, always(10_000)),
    Layout("100 B, zstd, batches of 16 kB", 16 * KB, always(100), ZSTD),
    Layout("100 B, zstd, batches of 1 MB", KB * KB, always(100), ZSTD),
    Layout("100 B of small integers, 256 kB", 256 * KB, always(100), value=small_integers),
    Layout("100 B with headers, 256 kB", 256 * KB, always(100), headers=(("trace", b"0123456789abcdef"),)),
]


def answer(layout: Layout) -> tuple[bytes, int]:
    """The bytes, and how many records are in them."""
    sizes, built, records = layout.sizes(), b"", 0
    while len(built) < DISTINCT:
        builder = DefaultRecordBatchBuilder(2, layout.codec, False, -1, -1, -1, layout.batch_bytes)
        delta = 0
        while builder.append(delta, BEGAN + delta // 8, None, layout.value(next(sizes)), list(layout.headers)):
            delta += 1
        whole = bytearray(builder.build())
        whole[:8] = records.to_bytes(8, "big")
        built += whole
        records += delta
    times = max(ANSWER // len(built), 1)
    return built * times, records * times


def least_ns(raw: bytes, runs: int) -> int:
    """The least CPU time to decode ``raw``."""
    decoder = Decoder(COLUMNS, read_committed=False)
    part = PartitionRecords(find_record_batches(TP, memoryview(raw)), 0, 2**62)
    found = []
    for _ in range(runs):
        before = time.process_time_ns()
        for _rows in decoder.decode([part]):
            pass
        found.append(time.process_time_ns() - before)
    return min(found)


def main() -> None:
    """Prints a line for each layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--only", default="", help="layouts with this in their name")
    given = parser.parse_args()
    for layout in LAYOUTS:
        if given.only in layout.name:
            raw, records = answer(layout)
            print(f"{layout.name:40}{records:9,} records{least_ns(raw, given.runs) / records:8.0f} ns each", flush=True)


if __name__ == "__main__":
    main()
