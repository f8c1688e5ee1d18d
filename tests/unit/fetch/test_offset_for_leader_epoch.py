"""A task reads a range from the log of its plan, or reports which records were replaced (KIP-320)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import DataLoss, DeadlineExceeded, TopicError
from spark_group_source.fetch import reader
from spark_group_source.fetch.leaders import EpochEndOffset, epoch_end_offsets
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.fake import FakeKafka, Fault

LONG = 90.0


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """One partition with the records old-0 to old-9 of leader epoch 0, on the first of two brokers."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t")
        fill(running, "old", 10)
        yield running
    for _, kept in reader._idle_clusters.values():
        kept.close()
    reader._idle_clusters.clear()


def fill(fake: FakeKafka, name: str, end: int) -> None:
    """Appends records up to an offset, each in its own record batch."""
    for each in range(fake.logs["t"][0].end, end):
        fake.produce("t", [f"{name}-{each}"])


def wire(fake: FakeKafka) -> WireOptions:
    brokers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    return WireOptions(brokers, "test", request_timeout=LONG, retry_backoff=0.01, retry_backoff_max=0.02)


def task(fake: FakeKafka, start: int, end: int, epoch: int, **given: Any) -> FetchTask:
    ranges = (OffsetRange("t", 0, start, end, str(fake.ids["t"]), epoch),)
    settings = FetchSettings(**{"max_wait": 0.01, "poll_timeout": LONG} | given)
    return FetchTask(ranges, wire(fake), arrow_schema(["value"]), settings)


def values(task: FetchTask) -> list[str]:
    return [value.decode() for each in read(task) for value in each["value"].to_pylist()]


def old(start: int, end: int) -> list[str]:
    return [f"old-{each}" for each in range(start, end)]


def new(start: int, end: int) -> list[str]:
    return [f"new-{each}" for each in range(start, end)]


def test_without_an_election_no_epoch_is_checked(fake: FakeKafka) -> None:
    assert values(task(fake, 2, 10, epoch=0)) == old(2, 10)
    assert not fake.request_count("OffsetForLeaderEpoch")


def test_a_new_leader_with_the_whole_range_is_checked_once(fake: FakeKafka) -> None:
    fake.elect("t", leader=2)
    fill(fake, "new", 15)
    assert values(task(fake, 2, 10, epoch=0)) == old(2, 10)
    assert fake.request_count("OffsetForLeaderEpoch") == 1


@pytest.mark.parametrize("start", [2, 8], ids=["truncated in the range", "truncated before the range"])
def test_records_replaced_after_a_truncation_are_data_loss(fake: FakeKafka, start: int) -> None:
    fake.elect("t", end=6, leader=2)
    fill(fake, "new", 20)
    lost = rf"\[{max(start, 6)}, 10\) of t-0.*truncated at offset 6.*leader epoch 0, and the leader now has epoch 1"
    with pytest.raises(DataLoss, match=lost):
        values(task(fake, start, 10, epoch=0))
    # The task skips the offsets after the truncation. The driver plans the records that are there now.
    assert values(task(fake, start, 10, epoch=0, fail_on_data_loss=False)) == old(start, 6)


def test_a_range_before_the_truncation_is_read_completely(fake: FakeKafka) -> None:
    fake.elect("t", end=6)
    fill(fake, "new", 20)
    assert values(task(fake, 2, 6, epoch=0)) == old(2, 6)


def test_a_range_planned_after_the_truncation_is_read_completely(fake: FakeKafka) -> None:
    fake.elect("t", end=6)
    fill(fake, "new", 20)
    fake.elect("t")
    assert values(task(fake, 2, 20, epoch=1)) == old(2, 6) + new(6, 20)


def test_a_range_of_unknown_epoch_is_read_without_a_check(fake: FakeKafka) -> None:
    fake.elect("t", end=6)
    fill(fake, "new", 20)
    assert values(task(fake, 2, 10, epoch=-1)) == old(2, 6) + new(6, 10)


def test_retention_that_removed_all_epochs_is_not_a_truncation(fake: FakeKafka) -> None:
    fake.elect("t")
    fill(fake, "new", 20)
    fake.truncate("t", 0, 14)
    with pytest.raises(DataLoss, match=r"\[2, 10\) of t-0.*the log holds \[14, 20\)"):
        values(task(fake, 2, 10, epoch=0))
    assert values(task(fake, 2, 16, epoch=1, fail_on_data_loss=False)) == new(14, 16)


def test_a_leader_elected_during_a_task_is_checked_before_it_is_read(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, "old", 2000)
    rows = read(task(fake, 0, 2000, epoch=0, fail_on_data_loss=False, fetch_max_bytes=20_000))
    found = [value.decode() for value in next(rows)["value"].to_pylist()]
    fake.elect("t", end=1900)  # on the same broker, so only the epoch changes
    fill(fake, "new", 2500)
    with caplog.at_level(logging.WARNING):
        found += [value.decode() for each in rows for value in each["value"].to_pylist()]
    assert found == old(0, 1900)
    assert "[1900, 2000) of t-0" in caplog.text


def test_metadata_older_than_the_plan_is_refreshed(fake: FakeKafka) -> None:
    assert values(task(fake, 0, 10, epoch=0)) == old(0, 10)
    fake.elect("t", leader=2)
    fill(fake, "new", 12)
    # The reused worker still has the metadata of epoch 0.
    assert values(task(fake, 10, 12, epoch=1)) == new(10, 12)
    assert not fake.request_count("OffsetForLeaderEpoch")


def test_a_task_does_not_read_from_a_leader_older_than_the_plan(fake: FakeKafka) -> None:
    with pytest.raises(
        DeadlineExceeded, match=r"t-0\[2, 10\) at offset 2 \(its leader has epoch 0, older than epoch 3"
    ):
        values(task(fake, 2, 10, epoch=3, poll_timeout=0.3))
    assert not fake.request_count("Fetch")


@pytest.mark.parametrize("error_code", [6, 74, 75])
def test_a_task_asks_for_the_leader_again_after_it_changed(fake: FakeKafka, error_code: int) -> None:
    fake.elect("t")
    fake.next("OffsetForLeaderEpoch", Fault(error=error_code), times=2)
    fake.next("OffsetForLeaderEpoch", Fault(drop="before"))
    assert values(task(fake, 2, 10, epoch=0)) == old(2, 10)
    assert fake.request_count("OffsetForLeaderEpoch") == 3


def test_a_denied_describe_fails_the_epoch_check(fake: FakeKafka) -> None:
    fake.elect("t")
    fake.next("OffsetForLeaderEpoch", Fault(error=29))
    with pytest.raises(TopicError, match="Grant the principal DESCRIBE"):
        values(task(fake, 2, 10, epoch=0))


def test_each_leader_gets_one_request_for_all_its_partitions(fake: FakeKafka) -> None:
    fake.create_topic("u", partitions=6)
    for number in range(6):
        fake.elect("u", number)
    cluster, deadline = Cluster(wire(fake)), Deadline.after(LONG)
    epochs = {TopicPartition("u", number): 0 for number in range(6)}
    try:
        told = epoch_end_offsets(cluster, cluster.topics(["u"], deadline), epochs, deadline)
    finally:
        cluster.close()
    assert told == dict.fromkeys(epochs, EpochEndOffset(leader_epoch=1, end_offset=0))
    assert fake.request_count("OffsetForLeaderEpoch") == 2
