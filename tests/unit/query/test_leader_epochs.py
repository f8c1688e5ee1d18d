"""A log that was truncated and grew again is data loss; only the leader epochs of its records show it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_group_source.errors import DataLoss
from spark_group_source.group.membership import Membership
from spark_group_source.group.offsets import COMMIT_TAG
from spark_group_source.offsets import BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.query import data_loss, end_offsets, topics
from spark_group_source.query.offset_tracker import OffsetTracker, OwnedPartition, PinnedStarts, Start, StartRule
from tests.fake import FakeKafka, Fault
from tests.unit.query.test_data_loss import ANY_LINEAGE, MARKER, Query, create, fill, of, queries_closed

HARMED = TopicPartition("harmed", 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_offsets, "TRUNCATION_LOOKUP_INTERVAL", 0.01)
    monkeypatch.setattr(topics, "DELETED_INTERVAL", 0.01)
    monkeypatch.setattr(data_loss, "MIN_BACKOFF", 0.01)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Two topics of one partition and five records."""
    with FakeKafka(brokers=2) as running, queries_closed():
        create(running, "harmed", 5)
        create(running, "other", 5)
        yield running


def query(fake: FakeKafka, logged: BatchOffset | None = None, available_now: bool = False, **more: Any) -> Query:
    return Query(fake, logged or BatchOffset(), available_now, **{"subscribe": "harmed,other"} | more)


def replace(fake: FakeKafka, end: int = 2, until: int = 9) -> None:
    """An unclean leader is elected that had the records before ``end``, and gets others up to ``until``."""
    fake.elect("harmed", end=end, leader=2)
    fill(fake, "harmed", 0, until - end)


def read_all(fake: FakeKafka, **more: Any) -> Query:
    """A query that has read and committed all records."""
    found = query(fake, **more).until({*of("harmed", 0, 0, 5), MARKER_BEFORE})
    found.rows.clear()
    return found


MARKER_BEFORE = ("other", 0, 4)
HOW = ["running", "restarted", "restarted without a commit", "available now", "with a new checkpoint"]


def after(harm: Callable[[FakeKafka], None], fake: FakeKafka, how: str, **more: Any) -> Query:
    """A query that had read everything before the harm, with one more record in another topic."""
    reading = read_all(fake, **more)
    if how != "running":
        reading.close()
    if how == "restarted without a commit":
        fake.group("g").offsets.clear()
    harm(fake)
    fill(fake, "other", 0, 1)
    if how == "running":
        return reading
    return query(fake, None if "new" in how else reading.end, how == "available now", **more)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("until", [4, 5, 9], ids=["shorter", "as long", "longer"])
def test_a_log_that_diverged_is_data_loss_whatever_its_length(fake: FakeKafka, how: str, until: int) -> None:
    says = (
        r"log of harmed-0 was truncated at offset 2, before offset 5 .*\(leader epoch 0 then, 1 now\)"
        r".*failOnDataLoss to false to continue at offset 2"
    )
    with pytest.raises(DataLoss, match=says):
        after(lambda fake: replace(fake, until=until), fake, how).until({("nothing", 0, 0)})


@pytest.mark.parametrize("how", HOW)
def test_if_data_loss_is_accepted_all_new_records_are_read_once(
    fake: FakeKafka, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [MARKER, *of("harmed", 0, 2, 9)]
    with caplog.at_level(logging.WARNING):
        found = after(replace, fake, how, failOnDataLoss="false").until(set(expected))
    assert sorted(found.rows) == sorted(expected)
    assert "The query continues at offset 2, because failOnDataLoss is false" in caplog.text
    assert fake.group("g").offsets["harmed", 0] == (9, ANY_LINEAGE)
    assert fake.group("g").epochs["harmed", 0] == 1
    found.close()
    # A loss that was accepted is none for the next run.
    fill(fake, "harmed", 0, 1)
    assert query(fake, found.end).until({("harmed", 0, 9)}).rows == of("harmed", 0, 9, 10)


@pytest.mark.parametrize("how", HOW)
def test_an_election_without_lost_records_is_no_data_loss(fake: FakeKafka, how: str) -> None:
    def harm(fake: FakeKafka) -> None:
        replace(fake, end=5, until=7)

    expected = [MARKER, *of("harmed", 0, 5, 7)]
    found = after(harm, fake, how).until(set(expected))
    assert sorted(found.rows) == sorted(expected)
    assert fake.group("g").epochs["harmed", 0] == 1


@pytest.mark.parametrize("pinned", [False, True])
def test_a_log_that_diverged_before_the_first_batch_is_read_from_there(fake: FakeKafka, pinned: bool) -> None:
    starts = {HARMED: PinnedStart(str(fake.ids["harmed"]), 5, 0)}
    given: dict[str, Any] = {"subscribe": "harmed", "startingOffsets": "latest", "failOnDataLoss": "false"}
    if pinned:
        replace(fake)
        reading = query(fake, BatchOffset({}, "g", starts), **given)
    else:
        reading = query(fake, **given)
        assert (fake.group("g").offsets["harmed", 0][0], fake.group("g").epochs["harmed", 0]) == (5, 0)
        replace(fake)
    assert reading.until({("harmed", 0, 8)}).rows == of("harmed", 0, 2, 9)


def test_a_position_after_a_rewind_has_the_epoch_of_the_leader_that_has_it(fake: FakeKafka) -> None:
    reading = read_all(fake, failOnDataLoss="false")
    replace(fake, until=2)
    fill(fake, "other", 0, 1)
    reading.until({MARKER}).close()
    assert (fake.group("g").offsets["harmed", 0], fake.group("g").epochs["harmed", 0]) == ((2, ANY_LINEAGE), 1)
    replace(fake, end=0)
    assert query(fake, failOnDataLoss="false").until({("harmed", 0, 8)}).rows == of("harmed", 0, 0, 9)


def test_there_is_one_epoch_lookup_for_each_change_of_leader(fake: FakeKafka) -> None:
    reading = read_all(fake)
    for _ in range(20):
        reading.step()
    assert not fake.request_count("OffsetForLeaderEpoch")
    fake.elect("harmed")
    fake.elect("other")
    for _ in range(20):
        reading.step()
    # The same broker leads both partitions.
    assert fake.request_count("OffsetForLeaderEpoch") == 1


def test_records_replaced_twice_are_found_from_an_old_checkpoint(fake: FakeKafka) -> None:
    reading = read_all(fake)
    reading.close()
    replace(fake, end=4)
    replace(fake, end=3)
    with pytest.raises(DataLoss, match=r"truncated at offset 3, before offset 5 .*\(leader epoch 0 then, 2 now\)"):
        query(fake, reading.end).until({MARKER})


def test_a_batch_replayed_after_an_election_is_data_loss_or_read_up_to_the_truncation(fake: FakeKafka) -> None:
    with query(fake) as planning:
        batch = planning.driver.plan_batch(planning.end, None)
    replace(fake)
    with query(fake, batch) as failing, pytest.raises(DataLoss, match=r"\[2, 5\) of harmed-0.*truncated at offset 2"):
        failing.read(batch)
    with query(fake, batch, failOnDataLoss="false") as reading:
        reading.read(batch)
        assert [row for row in reading.rows if row[0] == "harmed"] == of("harmed", 0, 0, 2)
        reading.rows.clear()
        assert reading.until({("harmed", 0, 8)}).rows == of("harmed", 0, 2, 9)


def test_a_checkpoint_and_commits_without_epochs_are_read(fake: FakeKafka) -> None:
    reading = read_all(fake)
    reading.close()
    old = BatchOffset.of(
        OffsetRange(*each.tp, each.start, each.end, each.topic_id) for each in reading.end.ranges.values()
    )
    fake.commit("g", {("harmed", 0): 5, ("other", 0): 5}, COMMIT_TAG)
    replace(fake)
    found = query(fake, old).until({("harmed", 0, 8)})
    assert found.rows == of("harmed", 0, 5, 9)
    assert found.end.ranges[HARMED].epoch == 1


def test_a_rewind_before_the_truncation_is_read_from_there(fake: FakeKafka) -> None:
    read_all(fake).close()
    replace(fake)
    fake.commit("g", {("harmed", 0): 1})
    fill(fake, "other", 0, 1)
    assert sorted(query(fake).until({("harmed", 0, 8)}).rows) == [*of("harmed", 0, 1, 9), MARKER]


def test_a_partition_whose_new_leader_does_not_answer_waits_and_the_others_are_read(fake: FakeKafka) -> None:
    reading = read_all(fake)
    fake.elect("harmed", leader=2)
    fill(fake, "harmed", 0, 3)
    fill(fake, "other", 0, 1)
    fake.next("OffsetForLeaderEpoch", Fault(error=74), times=10_000)
    reading.until({MARKER})
    assert reading.rows == [MARKER]
    fake.clear_faults()
    reading.until(set(of("harmed", 0, 5, 8)))
    assert reading.rows == [MARKER, *of("harmed", 0, 5, 8)]


@pytest.mark.parametrize("available_now", [False, True])
def test_the_end_of_a_log_proves_nothing_before_its_new_leader_has_answered(
    fake: FakeKafka, available_now: bool
) -> None:
    reading = read_all(fake, failOnDataLoss="false")
    if available_now:
        reading.close()
        fill(fake, "harmed", 0, 3)
        reading = query(fake, reading.end, available_now, failOnDataLoss="false")
        assert reading.driver._planner._target is not None
        reading.driver._planner._target.set_once()
    fake.next("OffsetForLeaderEpoch", Fault(error=74), times=3)
    replace(fake, until=4)
    if available_now:
        assert reading.step(), "the run ends"
    assert reading.until({("harmed", 0, 3)}).rows == of("harmed", 0, 2, 4)


def test_a_leader_older_than_the_position_is_not_read_until_the_timeout(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        fake.elect("harmed")
    reading = read_all(fake)
    assert reading.end.ranges[HARMED].epoch == 3
    reading.close()
    fake.logs["harmed"][0].epochs = [(1, 0)]
    fill(fake, "harmed", 0, 2)
    fill(fake, "other", 0, 1)
    waiting = query(fake, reading.end, failOnDataLoss="false").until({MARKER})
    assert waiting.rows == [MARKER]
    assert "harmed-0 is not read while its leader has epoch 1, older than epoch 3 before" in caplog.text
    waiting.close()
    monkeypatch.setattr(data_loss, "OLDER_EPOCH_TIMEOUT", 0.05)
    with (
        query(fake, reading.end) as failing,
        pytest.raises(DataLoss, match="The leader of harmed-0 has epoch 1, older than epoch 3 under which.* offset 5"),
    ):
        failing.until({("harmed", 0, 6)})
    found = query(fake, waiting.end, failOnDataLoss="false").until(set(of("harmed", 0, 5, 7)))
    assert found.rows == of("harmed", 0, 5, 7)


def test_a_recreated_topic_has_its_own_epochs(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loss, "OLDER_EPOCH_TIMEOUT", float("inf"))
    for _ in range(3):
        fake.elect("harmed")
    reading = read_all(fake, failOnDataLoss="false")
    fake.delete_topic("harmed")
    create(fake, "harmed", 9)
    assert reading.until({("harmed", 0, 8)}).rows == of("harmed", 0, 0, 9)
    assert reading.end.ranges[HARMED].epoch == 0


def test_the_group_and_the_epoch_of_each_end_are_logged(fake: FakeKafka) -> None:
    fake.elect("harmed")
    reading = read_all(fake)
    assert reading.end.group == "g"
    assert {tp.topic: each.epoch for tp, each in reading.end.ranges.items()} == {"harmed": 1, "other": 0}
    # Also for partitions that the batch does not read.
    fill(fake, "other", 0, 1)
    assert reading.until({MARKER}).end.ranges[HARMED].epoch == 1


def test_an_epoch_that_the_other_thread_has_set_meanwhile_stays() -> None:
    tracker, me = OffsetTracker(), Membership(owned={HARMED: 1})
    tracker.restore(BatchOffset.of([OffsetRange("harmed", 0, 0, 5, "id", 4)]), PinnedStarts())
    tracker.partitions_assigned(frozenset({HARMED}), me)
    with tracker.start_lookup(frozenset({HARMED})) as lookup:
        tracker.record_starts(lookup, {HARMED: Start(5, StartRule.LOGGED)}, {}, {})
    for other in (OwnedPartition(position=5, epoch=3), OwnedPartition(position=3, epoch=4)):
        tracker.advance_epochs({HARMED: other}, {HARMED: 7})
        assert tracker.positions(me)[HARMED].epoch == 4
    tracker.advance_epochs({HARMED: OwnedPartition(position=5, epoch=4)}, {HARMED: 6})
    assert tracker.positions(me)[HARMED].epoch == 6
