"""A task reads a range from the log of its plan, or reports which records were replaced (KIP-320)."""

from __future__ import annotations

from typing import Any

import pytest

from spark_group_source import grace
from spark_group_source.errors import DataLoss, DeadlineExceeded, TopicError
from spark_group_source.fetch.reader import read
from tests.fake import FakeKafka, Fault
from tests.unit.fetch.tasks import task


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    """Partition 0 has the records old-0 to old-9 of leader epoch 0, on the first of two brokers."""
    fill(fake, "old", 10)


def fill(fake: FakeKafka, name: str, end: int) -> None:
    """Appends records up to an offset, each in its own record batch."""
    for each in range(fake.logs["t"][0].end, end):
        fake.produce("t", [f"{name}-{each}"], partition=0)


def values(fake: FakeKafka, start: int, end: int, epoch: int, **given: Any) -> list[str]:
    rows = read(task(fake, (0, start, end), epoch=epoch, **given))
    return [value.decode() for each in rows for value in each["value"].to_pylist()]


def old(start: int, end: int) -> list[str]:
    return [f"old-{each}" for each in range(start, end)]


def new(start: int, end: int) -> list[str]:
    return [f"new-{each}" for each in range(start, end)]


def test_a_new_leader_with_the_whole_range_is_checked_once(fake: FakeKafka) -> None:
    assert values(fake, 2, 10, epoch=0) == old(2, 10)
    assert not fake.request_count("OffsetForLeaderEpoch")
    fake.elect("t", leader=2)
    fill(fake, "new", 15)
    assert values(fake, 2, 10, epoch=0) == old(2, 10)
    assert fake.request_count("OffsetForLeaderEpoch") == 1


@pytest.mark.parametrize("start", [2, 8], ids=["truncated in the range", "truncated before the range"])
def test_records_replaced_after_a_truncation_are_data_loss(fake: FakeKafka, start: int) -> None:
    fake.elect("t", end=6, leader=2)
    fill(fake, "new", 20)
    lost = rf"\[{max(start, 6)}, 10\) of t-0.*truncated at offset 6.*leader epoch 0, and the leader now has epoch 1"
    with pytest.raises(DataLoss, match=lost):
        values(fake, start, 10, epoch=0)
    # The task skips the offsets after the truncation. The driver plans the records that are there now.
    assert values(fake, start, 10, epoch=0, fail_on_data_loss=False) == old(start, 6)


def test_a_range_outside_of_the_truncation_or_of_unknown_epoch_is_read_completely(fake: FakeKafka) -> None:
    fake.elect("t", end=6)
    fill(fake, "new", 20)
    assert values(fake, 2, 6, epoch=0) == old(2, 6)
    assert values(fake, 2, 10, epoch=-1) == old(2, 6) + new(6, 10), "nothing is checked"
    fake.elect("t")
    assert values(fake, 2, 20, epoch=1) == old(2, 6) + new(6, 20), "planned after the truncation"


def test_retention_that_removed_all_epochs_is_not_a_truncation(fake: FakeKafka) -> None:
    fake.elect("t")
    fill(fake, "new", 20)
    fake.truncate("t", 0, 14)
    with pytest.raises(DataLoss, match=r"\[2, 10\) of t-0.*the log holds \[14, 20\)"):
        values(fake, 2, 10, epoch=0)
    assert values(fake, 2, 16, epoch=1, fail_on_data_loss=False) == new(14, 16)


def test_a_leader_elected_during_a_task_is_checked_first(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    fill(fake, "old", 2000)
    rows = read(task(fake, (0, 0, 2000), epoch=0, fail_on_data_loss=False, fetch_max_bytes=20_000))
    found = [value.decode() for value in next(rows)["value"].to_pylist()]
    fake.elect("t", end=1900)  # on the same broker, so only the epoch changes
    fill(fake, "new", 2500)
    found += [value.decode() for each in rows for value in each["value"].to_pylist()]
    assert found == old(0, 1900)
    assert "[1900, 2000) of t-0" in caplog.text


def test_a_task_does_not_read_from_a_leader_older_than_the_plan(fake: FakeKafka) -> None:
    says = r"t-0\[2, 10\) at offset 2 \(its leader has epoch 0, older than epoch 3"
    with pytest.raises(DeadlineExceeded, match=says):
        values(fake, 2, 10, epoch=3, poll_timeout=0.3)
    assert not fake.request_count("Fetch")


@pytest.mark.parametrize("error_code", [6, 74, 75])
def test_a_task_asks_for_the_leader_again_after_it_changed(fake: FakeKafka, error_code: int) -> None:
    fake.elect("t")
    fake.next("OffsetForLeaderEpoch", Fault(error=error_code), times=2)
    fake.next("OffsetForLeaderEpoch", Fault(drop="before"))
    assert values(fake, 2, 10, epoch=0) == old(2, 10)
    assert fake.request_count("OffsetForLeaderEpoch") == 3


def test_a_task_waits_for_the_permission_to_check_the_epoch(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    fake.elect("t")
    fake.next("OffsetForLeaderEpoch", Fault(error=29), times=3)
    assert values(fake, 2, 10, epoch=0) == old(2, 10)
    assert fake.request_count("OffsetForLeaderEpoch") == 4
    assert caplog.text.count("no longer has READ on topic 't'") == 1
    assert "Grant the principal READ" in caplog.text


def test_a_permission_to_check_the_epoch_that_stays_missing_fails_the_task(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grace, "GRACE_PERIOD", 0.1)
    fake.elect("t")
    fake.next("OffsetForLeaderEpoch", Fault(error=29), times=10_000)
    with pytest.raises(TopicError, match=r"READ on topic 't' has been missing for \d s\. Grant the principal READ"):
        values(fake, 2, 10, epoch=0)


def test_metadata_older_than_the_plan_is_refreshed(fake: FakeKafka) -> None:
    assert values(fake, 0, 10, epoch=0) == old(0, 10)
    fake.elect("t", leader=2)
    fill(fake, "new", 12)
    # The reused worker still has the metadata of epoch 0.
    assert values(fake, 10, 12, epoch=1) == new(10, 12)
    assert not fake.request_count("OffsetForLeaderEpoch")
