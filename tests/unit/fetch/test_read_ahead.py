"""Records beyond a range serve the next task of the query, and only if they are surely those of the log. How many bytes
a fetch asks for, by the sizes that a worker learned."""

from __future__ import annotations

import os
import resource
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.fetch import read_ahead
from spark_group_source.fetch.cluster_pool import pooled_cluster
from spark_group_source.fetch.position import ESTIMATED_RECORD_SIZE, MAX_FIRST_FETCH, MIN_FETCH, READ_AHEAD, RecordSizes
from spark_group_source.fetch.read_ahead import LOCAL_DIRECTORIES, MAX_AGE, REMOVAL_INTERVAL
from spark_group_source.fetch.reader import TaskReader, read
from spark_group_source.offsets import UNKNOWN_EPOCH
from spark_group_source.records.batches import find_record_batches
from tests.fake import FakeKafka, Fault
from tests.unit.fetch import tasks
from tests.unit.fetch.tasks import aborted, fetches, fill, of
from tests.unit.hand_clock import Hand
from tests.unit.records.build import TP, Record, batch

NOT_LEADER = 6
SIZE = 400
RECORDS = 800


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spark's directory for temporary files."""
    monkeypatch.setenv(LOCAL_DIRECTORIES, f"{tmp_path},/elsewhere")
    monkeypatch.setattr(read_ahead, "_next_removal", [0.0])
    return tmp_path


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    """Both partitions have one leader, so that one fetch reads both."""
    for partition, log in fake.logs["t"].items():
        log.leader = 1
        fill(fake, batches=RECORDS // 5, size=SIZE, partition=partition)


task = partial(tasks.task, epoch=0, query_id="q")
"""A task of the query ``q``, planned under a leader epoch."""


def rows(fake: FakeKafka, *ranges: tuple[int, int, int], **given: Any) -> list[tuple[int, int]]:
    """(Partition, offset) of each row; checks the values."""
    found = [row for each in read(task(fake, *ranges, **given)) for row in each.to_pylist()]
    assert all(int(row["value"]) == row["offset"] for row in found)
    return sorted((row["partition"], row["offset"]) for row in found)


def kept_files(local: Path) -> list[Path]:
    return sorted(local.glob("kafka-group-*/*"))


def test_every_record_of_a_backlog_is_read_once_and_received_about_once(fake: FakeKafka) -> None:
    received = 0

    def count(answer: Any) -> None:
        nonlocal received
        received += sum(len(each.records) for each in answer.responses[0].partitions)

    fake.next("Fetch", Fault(edit=count), times=10_000)
    found: list[tuple[int, int]] = []
    for start in range(0, RECORDS, 7):
        end = min(start + 7, RECORDS)
        found += rows(fake, (0, start, end), (1, start, end))
    assert sorted(found) == of(0, 0, RECORDS) + of(1, 0, RECORDS)
    written = sum(len(raw) for log in fake.logs["t"].values() for _, _, raw in log.batches)
    assert received < 1.1 * written


def test_the_time_of_spark_for_kept_records_is_no_standstill(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(fake, (0, 0, 10))
    more = task(fake, (0, 10, 790), poll_timeout=5.0)
    clock = Hand()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    fake.next("Fetch", Fault(error=NOT_LEADER))
    with pooled_cluster(more.wire) as cluster:
        batches = TaskReader(more, cluster, clock).batches()
        kept = next(batches).num_rows
        assert 0 < kept < 780
        clock.now += 6.0
        assert kept + sum(each.num_rows for each in batches) == 780


@pytest.mark.parametrize(
    ("ranges", "given"),
    [
        pytest.param((0, 10, 20), {"query_id": "another"}, id="another query"),
        pytest.param((0, 10, 20), {"query_id": ""}, id="a batch query"),
        pytest.param((0, 10, 20), {"epoch": UNKNOWN_EPOCH}, id="an unknown epoch"),
        pytest.param((0, 5, 15), {}, id="replayed"),
        pytest.param((1, 10, 20), {}, id="another partition"),
    ],
)
def test_other_ranges_are_fetched(fake: FakeKafka, ranges: tuple[int, int, int], given: dict[str, Any]) -> None:
    rows(fake, (0, 0, 10))
    before = len(fetches(fake))
    assert rows(fake, ranges, **given) == of(*ranges)
    assert len(fetches(fake)) > before


def test_records_that_an_election_truncated_are_not_read(fake: FakeKafka) -> None:
    rows(fake, (0, 0, 10))
    fake.logs["t"][0].elect(None, 15)
    fake.produce("t", [f"new {number}" for number in range(5)])
    found = [row["value"] for each in read(task(fake, (0, 10, 20), epoch=1)) for row in each.to_pylist()]
    assert found == [f"{number:0{SIZE}d}".encode() for number in range(10, 15)] + [b"new %d" % n for n in range(5)]


def test_a_few_records_beyond_a_range_are_not_kept(fake: FakeKafka, local: Path) -> None:
    """At the end of a log some records arrive between the plan and the fetch. The next range is larger."""
    assert rows(fake, (0, 0, RECORDS - 50)) == of(0, 0, RECORDS - 50)
    assert not kept_files(local)


def test_nothing_is_kept_beside_aborted_transactions(fake: FakeKafka, local: Path) -> None:
    fake.next("Fetch", Fault(edit=aborted))
    assert rows(fake, (0, 0, 10), read_committed=True) == of(0, 0, 10)
    assert not kept_files(local)


def test_an_unreadable_file_is_ignored_and_a_cut_file_gives_complete_batches(fake: FakeKafka, local: Path) -> None:
    for damage in (b"", b"\0" * 5, b"\0" * 500, b"\xff" * 500, None):
        rows(fake, (0, 0, 10))
        (path,) = kept_files(local)
        path.write_bytes(path.read_bytes()[:9000] if damage is None else damage)
        assert rows(fake, (0, 10, 60)) == of(0, 10, 60), damage


def test_each_flipped_bit_of_a_file_gives_the_right_rows(fake: FakeKafka, local: Path) -> None:
    """Also with checksums off: those of record batches cover neither their offsets nor the header of the file."""
    rows(fake, (0, 0, 10))
    (path,) = kept_files(local)
    whole = path.read_bytes()
    header_and_first_batch = 16 + len(fake.logs["t"][0].batches[2][2])
    for bit in (*range(0, 8 * 80, 3), *range(8 * 80, 8 * header_and_first_batch, 997)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert rows(fake, (0, 10, 15), check_crcs=False) == of(0, 10, 15), bit


def damaged_on_its_way(answer: Any) -> None:
    """Flips a bit in a value of the third record batch, which the checksum of that batch shows."""
    part = answer.responses[0].partitions[0]
    third = find_record_batches(TP, memoryview(part.records)).boundaries[2]
    damaged = bytearray(part.records)
    damaged[third + 200] ^= 1
    part.records = bytes(damaged)


def test_kept_records_that_do_not_decode_are_removed_and_fetched(
    fake: FakeKafka, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is as it was written: the records were damaged before, behind the range of the task that kept them."""
    fake.next("Fetch", Fault(edit=damaged_on_its_way))
    assert rows(fake, (0, 0, 10)) == of(0, 0, 10)
    assert kept_files(local)
    before = len(fetches(fake))
    assert rows(fake, (0, 10, 20), (1, 0, 10)) == of(0, 10, 20) + of(1, 0, 10)
    assert len(fetches(fake)) > before
    assert "cannot use the buffered records of t-0" in caplog.text
    assert rows(fake, (0, 20, 30)) == of(0, 20, 30), "the task has kept intact ones again"


def test_a_file_that_cannot_be_read_or_removed_is_ignored(fake: FakeKafka, local: Path) -> None:
    rows(fake, (0, 0, 10))
    (path,) = kept_files(local)
    path.unlink()
    path.mkdir()
    assert rows(fake, (0, 10, 20)) == of(0, 10, 20)


def test_a_task_reads_where_no_file_can_be_kept(fake: FakeKafka, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCAL_DIRECTORIES, "/proc/nothing")
    for start in (0, 10):
        assert rows(fake, (0, start, start + 10)) == of(0, start, start + 10)
    monkeypatch.delenv(LOCAL_DIRECTORIES)
    assert rows(fake, (0, 0, 10)) == of(0, 0, 10)
    assert not kept_files(local)


def test_a_write_that_fails_leaves_no_file(fake: FakeKafka, local: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system writes a part of the records, and then fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
    try:
        assert rows(fake, (0, 0, 100)) == of(0, 0, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not kept_files(local)


def test_a_task_keeps_a_limited_number_of_bytes(fake: FakeKafka, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MAX_BUFFERED_BYTES", 60_000)
    assert rows(fake, (0, 0, 10), (1, 0, 10)) == of(0, 0, 10) + of(1, 0, 10)
    assert 0 < sum(path.stat().st_size for path in kept_files(local)) < 60_000 + 100


def test_a_task_takes_a_limited_number_of_bytes_however_many_tasks_kept_them(
    fake: FakeKafka, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in (0, 1):
        rows(fake, (partition, 0, 10))
    monkeypatch.setattr(read_ahead, "MAX_BUFFERED_BYTES", max(path.stat().st_size for path in kept_files(local)))
    taken = []
    take = read_ahead.ReadAheadBuffer.take

    def noted(buffer: read_ahead.ReadAheadBuffer, wanted: Any) -> Any:
        taken.append(take(buffer, wanted))
        return taken[-1]

    monkeypatch.setattr(read_ahead.ReadAheadBuffer, "take", noted)
    assert rows(fake, (0, 10, 20), (1, 10, 20)) == of(0, 10, 20) + of(1, 10, 20)
    assert [found is not None for found in taken] == [True, False]


def test_a_directory_that_cannot_be_listed_does_not_fail_a_task(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "glob", fails)
    assert rows(fake, (0, 0, 10)) == of(0, 0, 10)


def test_kept_files_are_private_and_removed_after_their_use(fake: FakeKafka, local: Path) -> None:
    rows(fake, (0, 0, 10))
    (path,) = kept_files(local)
    assert path.parent.stat().st_mode & 0o077 == 0
    rows(fake, (0, RECORDS - 1, RECORDS))
    assert not kept_files(local)


def test_files_of_queries_that_ended_are_removed(fake: FakeKafka, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(fake, (0, 0, 50), query_id="ended")
    rows(fake, (0, 0, 50), query_id="running")
    (directory,) = local.glob("kafka-group-ended")
    old = directory.stat().st_mtime - MAX_AGE - 1
    os.utime(directory, (old, old))
    other = local / "blockmgr"
    other.mkdir()
    os.utime(other, (old, old))
    monkeypatch.setattr(read_ahead, "_next_removal", [read_ahead._next_removal[0] - REMOVAL_INTERVAL])
    rows(fake, (0, 50, 60), query_id="running")
    assert sorted(each.name for each in local.iterdir()) == ["blockmgr", "kafka-group-running"]


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
    gaps = batch([Record(b"x" * 10)], 0, last_delta=9)
    assert learned(gaps).bytes_per_offset == len(gaps) / 10, "gaps of compaction count"


@pytest.mark.parametrize(
    ("offsets", "limit", "asked"),
    [
        (1, LIMIT, MIN_FETCH),
        (100, LIMIT, 100 * ESTIMATED_RECORD_SIZE),
        (10**9, LIMIT, MAX_FIRST_FETCH),
        (10**9, MAX_FIRST_FETCH // 2, MAX_FIRST_FETCH // 2),
    ],
)
def test_the_size_is_estimated_before_the_first_response(offsets: int, limit: int, asked: int) -> None:
    assert RecordSizes().fetch_bytes(offsets, limit, MIN_FETCH) == asked


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
def test_a_fetch_asks_for_whole_record_batches(largest_batch: int, per_offset: float, offsets: int, asked: int) -> None:
    assert RecordSizes(per_offset, largest_batch).fetch_bytes(offsets, LIMIT, MIN_FETCH) == asked
