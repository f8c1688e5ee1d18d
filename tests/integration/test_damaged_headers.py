"""One bit of a record batch's header flips in a broker's log: the right rows, or an error with partition and offset.

The checksum of a record batch covers its header only from the attributes on, so the other fields need their own checks:
https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from tests.integration.standing import wire

BATCHES, EACH = 3, 4
END = BATCHES * EACH
HEADER_BYTES = 61
TOPIC = "damaged"
PLACE = re.compile(rf"{TOPIC}-0(?:\[\d+, \d+\))? at offset (-?\d+)\b")
Row = tuple[int, bytes]
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedKafka]:
    """A Kafka whose log tests of this module damage."""
    with EmbeddedKafka() as running:
        yield running


@pytest.fixture(scope="module")
def segment(own: EmbeddedKafka) -> Path:
    """The log of a partition with ``BATCHES`` record batches of ``EACH`` records."""
    own.create_topic(TOPIC)
    for batch in range(BATCHES):
        rows = [f"{batch}-{number}" for number in range(EACH)]
        own.produce(TOPIC, rows, partition=0, linger_ms=500, compression_type="gzip")
    (found,) = own.directory.glob(f"**/{TOPIC}-0/*.log")
    return found


def batch_positions(log: bytes) -> list[int]:
    positions, position = [], 0
    while position < len(log):
        positions.append(position)
        position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
    return positions


def last_offset(log: bytes, position: int) -> int:
    """The last offset of the record batch at this position, as a broker computes it.

    A broker looks for the first batch whose last offset is at least the fetched one. It passes over a batch with a
    smaller one, so that the response is that of a log without it. Compaction leaves such logs: no client notices.
    """
    base, magic, delta = struct.unpack_from(">q8xb6xi", log, position)
    return int(base + delta) if magic >= 2 else int(base)  # an old format's header has another layout


def rows_from(task: FetchTask) -> list[Row]:
    return [(row["offset"], row["value"]) for batch in read(task) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, END), slow(EACH, END), (EACH + 1, END), slow(EACH, 2 * EACH), (EACH + 1, 2 * EACH - 1)],
    ids=["all", "from this batch", "from within this batch", "this batch", "a part of this batch"],
)
def test_a_flipped_bit_of_a_header_gives_the_right_rows_or_names_its_place(
    own: EmbeddedKafka, segment: Path, start: int, end: int
) -> None:
    settings = wire(own, request_timeout=2.0)
    cluster = Cluster(settings)
    metadata = cluster.topics({TOPIC}, Deadline.after(30))[TOPIC]
    cluster.close()
    ranges = (OffsetRange(TOPIC, 0, start, end, metadata.id, metadata.epochs[0]),)
    task = FetchTask(ranges, settings, arrow_schema(["offset", "value"]), FetchSettings(poll_timeout=0.5, max_wait=0.1))
    expected = [(number, f"{number // EACH}-{number % EACH}".encode()) for number in range(start, end)]
    assert rows_from(task) == expected
    whole = segment.read_bytes()
    header = batch_positions(whole)[1]
    outcomes: Counter[str] = Counter()
    for bit in range(HEADER_BYTES * 8):
        place, mask = header + bit // 8, 0x80 >> bit % 8
        with segment.open("r+b") as log:
            log.seek(place)
            log.write(bytes([whole[place] ^ mask]))
            log.flush()
            hidden = last_offset(segment.read_bytes(), header) < start
            names, text = None, ""
            rows: list[Row] = []
            try:
                rows = rows_from(task)
            except GroupSourceError as error:
                outcome, text = error.code, str(error)
                names = PLACE.search(text)
            else:
                outcome = "hidden" if hidden else "rows"
            finally:
                log.seek(place)
                log.write(whole[place : place + 1])
        outcomes[outcome] += 1
        if outcome == "hidden":
            assert rows == [row for row in expected if row[0] >= 2 * EACH], f"bit {bit}"
        elif outcome == "rows":
            assert rows == expected, f"bit {bit}"
        else:
            assert names, f"bit {bit}: {text}"
            assert min(start, EACH) <= int(names[1]) <= END, f"bit {bit}: {text}"
    assert rows_from(task) == expected
    assert outcomes["CORRUPT_RECORDS"] > outcomes.total() / 2, outcomes
