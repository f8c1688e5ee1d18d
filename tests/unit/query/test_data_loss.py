"""Every kind of data loss, with ``failOnDataLoss`` true and false. On a fake Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DataLoss, TopicError
from spark_group_source.fetch import cluster_pool
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import COMMIT_TAG
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import available_now, end_offsets, epoch_check, topic_ids, topic_validator, truncation
from spark_group_source.query.driver import Driver
from spark_group_source.query.epoch_check import EpochCheck, LogTruncation
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import OwnedPartition
from spark_group_source.query.starts.pinned import PinnedStarts
from spark_group_source.query.starts.rules import Start, StartRule
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.leader_epochs import EpochEndOffset
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.waiting import TIMEOUT, eventually

MARKER = ("other", 0, 5)
HARMED = TopicPartition("harmed", 0)


Harm = Callable[[FakeKafka], None]
Row = tuple[str, int, int]
"""Topic, partition and offset of a record."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_validator, "UNKNOWN_TOPIC_TIMEOUT", 0.3)
    monkeypatch.setattr(available_now, "UNKNOWN_TIMEOUT", 0.3)
    monkeypatch.setattr(available_now, "POLL_INTERVALS", (0.01, 0.05))
    monkeypatch.setattr(truncation, "TRUNCATION_LOOKUP_INTERVAL", 0.01)
    monkeypatch.setattr(topic_ids, "DELETED_INTERVAL", 0.01)
    monkeypatch.setattr(epoch_check, "MIN_BACKOFF", 0.01)


def fill(fake: FakeKafka, topic: str, partition: int, count: int) -> None:
    for each in range(count):
        fake.produce(topic, [str(each)], partition=partition)


def not_leader(tp: TopicPartition, response: Any) -> None:
    """The leader of this partition does not return its offsets."""
    for topic in response.topics:
        for part in topic.partitions:
            if tp == (topic.name, part.partition_index):
                part.error_code = 6


def create(fake: FakeKafka, topic: str, *counts: int) -> None:
    fake.create_topic(topic, partitions=len(counts))
    for number, count in enumerate(counts):
        fill(fake, topic, number, count)


@contextmanager
def running() -> Iterator[FakeKafka]:
    """A topic of two partitions and two of one, with five records each."""
    with FakeKafka(brokers=2) as fake:
        create(fake, "harmed", 5, 5)
        create(fake, "gone", 5)
        create(fake, "other", 5)
        try:
            yield fake
        finally:
            while Query.made:
                Query.made.pop().close()
            for _, kept in cluster_pool._idle_clusters.values():
                kept.close()
            cluster_pool._idle_clusters.clear()


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with running() as made:
        yield made


class Query:
    """One run of a query; ``rows`` are the rows of its tasks, in batches that all succeeded."""

    made: ClassVar[list[Query]] = []
    """All queries of the test: the fixture closes them."""

    def __init__(
        self, fake: FakeKafka, logged: BatchOffset | None = None, available_now: bool = False, **given: Any
    ) -> None:
        options = {
            "kafka.bootstrap.servers": fake.bootstrap_servers,
            "kafka.group.id": "g",
            "startingOffsets": "earliest",
            "kafka.metadata.max.age.ms": "100",
            "kafka.retry.backoff.ms": "5",
            "kafka.retry.backoff.max.ms": "10",
        }
        if "assign" not in given:
            options["kafka.heartbeat.interval.ms"] = "50"
            if "subscribePattern" not in given:
                options["subscribe"] = "gone,harmed,other"
        self._options = parse_options(options | given)
        self.rows: list[Row] = []
        self.end = logged or BatchOffset()
        self.driver = Driver(self._options)
        self.close = self.driver.close
        self.made.append(self)
        self.driver.start(self.end)
        if available_now:
            self.driver.prepare_for_available_now()
        self.driver.await_assignment()

    def step(self) -> bool:
        """Plans and reads a batch; returns whether there was one."""
        batch = self.driver.plan_batch(self.end, None)
        if batch == self.end:
            return False
        if self.end.is_empty and not batch.reads():
            self.end = batch  # where the query starts
            return self.step()
        self.read(batch)
        return True

    def read(self, batch: BatchOffset) -> None:
        """Reads a batch that was planned."""
        schema = arrow_schema(["topic", "partition", "offset"])
        settings = replace(self._options.fetch, max_wait=0.01, poll_timeout=TIMEOUT)
        task = FetchTask(tuple(batch.reads()), self._options.wire, schema, settings)
        found = [row for part in read(task) for row in part.to_pylist()]
        self.rows += [(row["topic"], row["partition"], row["offset"]) for row in found]
        self.end = BatchOffset.from_json(batch.as_json())  # as Spark returns it

    def read_all(self) -> Query:
        """Runs until there is nothing to read; these rows do not count."""
        while self.step():
            pass
        self.rows.clear()
        return self

    def until(self, rows: set[Row]) -> Query:
        """Runs until these rows were read and no more arrive."""
        deadline = time.monotonic() + TIMEOUT
        while not rows <= set(self.rows):
            self.step()
            assert time.monotonic() < deadline, self.rows
        for _ in range(5):
            self.step()
        return self

    def harmed(self) -> list[Row]:
        """The rows of harmed-0."""
        return [row for row in self.rows if row[:2] == tuple(HARMED)]


def moved_to(fake: FakeKafka) -> int:
    """The committed offset of harmed-0, whose metadata shows that somebody moved the partition."""
    offset, metadata = fake.group("g").offsets["harmed", 0]
    assert metadata.startswith(f'{COMMIT_TAG} {{"lineage": ')
    return offset


def of(topic: str, partition: int, start: int, end: int) -> list[Row]:
    return [(topic, partition, offset) for offset in range(start, end)]


# What may happen to records, before or after a query has read them


def retention(start: int) -> Harm:
    """Five more records are written, and those before ``start`` deleted."""

    def expire(fake: FakeKafka) -> None:
        fill(fake, "harmed", 0, 5)
        fake.truncate("harmed", 0, start)

    return expire


def deleted(fake: FakeKafka) -> None:
    fake.delete_topic("gone")


def recreated(topic: str, records: int) -> Harm:
    """The new topic has one partition."""

    def recreate(fake: FakeKafka) -> None:
        fake.delete_topic(topic)
        create(fake, topic, records)

    return recreate


def truncated(fake: FakeKafka) -> None:
    log = fake.logs["harmed"][0]
    log.batches, log.end = log.batches[:2], 2


def diverged(until: int, end: int = 2) -> Harm:
    """An unclean leader is elected that had the records before ``end``, and gets others up to ``until``."""

    def elect(fake: FakeKafka) -> None:
        fake.elect("harmed", end=end, leader=2)
        fill(fake, "harmed", 0, until - end)

    return elect


DIVERGED = (
    r"log of harmed-0 was truncated at offset 2, before offset 5 .*\(leader epoch 0 then, 1 now\)"
    r".*failOnDataLoss to false to continue at offset 2"
)
RECREATED = r"Topic gone was deleted and recreated.*failOnDataLoss"
CASES: dict[str, tuple[Harm, str, list[Row]]] = {
    "retention in part": (
        retention(8),
        r"\[5, 8\) of harmed-0.*holds \[8, 10\).*failOnDataLoss",
        of("harmed", 0, 8, 10),
    ),
    "retention of all": (retention(10), r"\[5, 10\) of harmed-0.*log holds \[10, 10\).*failOnDataLoss", []),
    "deleted": (deleted, r"gone(-0)? does not exist any more.*failOnDataLoss", []),
    "recreated with fewer": (recreated("gone", 3), RECREATED, of("gone", 0, 0, 3)),
    "recreated with as many": (recreated("gone", 5), RECREATED, of("gone", 0, 0, 5)),
    "recreated with more": (
        recreated("gone", 9),
        r"gone was deleted and recreated|\[5, 9\) of gone-0.*was deleted",
        of("gone", 0, 0, 9),
    ),
    "recreated with fewer partitions": (
        recreated("harmed", 9),
        r"harmed was deleted and recreated|of harmed-0.*was deleted|harmed-1 does not exist",
        of("harmed", 0, 0, 9),
    ),
    "truncated": (truncated, r"harmed-0 ends at offset 2, before offset 5.*failOnDataLoss", []),
    "diverged and longer": (diverged(9), DIVERGED, of("harmed", 0, 2, 9)),
    "diverged and shorter": (diverged(4), DIVERGED, of("harmed", 0, 2, 4)),
}


def after(harm: Harm, fake: FakeKafka, how: str, fail: str) -> Query:
    """A query that had read everything before the harm, with one more record in another topic."""
    query = Query(fake, failOnDataLoss=fail).read_all()
    if how != "running":
        query.close()
    if how == "restarted without a commit":
        fake.group("g").offsets.clear()
    harm(fake)
    fill(fake, "other", 0, 1)
    if how == "running":
        return query
    logged = None if how == "with a new checkpoint" else query.end
    return Query(fake, logged, how == "available now", failOnDataLoss=fail)


@pytest.mark.parametrize("how", ["running", "restarted", "available now"])
@pytest.mark.parametrize(("harm", "says", "reads"), CASES.values(), ids=CASES)
def test_data_loss_fails_the_query_or_it_warns_and_reads_exactly_the_available_records(
    harm: Harm, says: str, reads: list[Row], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as fake, pytest.raises(DataLoss, match=says):
        after(harm, fake, how, "true").until({("nothing", 0, 0)})
    with running() as fake, caplog.at_level(logging.WARNING):
        query = after(harm, fake, how, "false").until({MARKER, *reads})
    assert sorted(query.rows) == sorted([MARKER, *reads])
    assert "failOnDataLoss is false" in caplog.text


def test_the_position_in_a_truncated_log_is_logged_at_once_although_batches_wait_for_more_records(
    fake: FakeKafka,
) -> None:
    query = Query(fake, failOnDataLoss="false", minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    assert query.step()
    fill(fake, "other", 0, 1)
    assert not query.step()
    truncated(fake)
    query.until({MARKER})  # with the batch that logs the position
    assert query.end.ends()[HARMED] == 2
    fill(fake, "other", 0, 1)
    assert not query.step()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_batch_truncated_after_its_plan_is_read_to_the_new_end(fake: FakeKafka, available_now: bool) -> None:
    failing = Query(fake, None, available_now)
    batch = failing.driver.plan_batch(failing.end, None)
    truncated(fake)
    with pytest.raises(DataLoss, match=r"\[2, 5\) of harmed-0.*are lost: the log ends at 2"):
        failing.read(batch)
    failing.close()
    query = Query(fake, batch, available_now, failOnDataLoss="false")
    query.read(batch)
    assert query.harmed() == of("harmed", 0, 0, 2)
    query.rows.clear()
    assert not query.until(set()).rows
    assert moved_to(fake) == 2
    query.close()
    fill(fake, "harmed", 0, 1)
    Query(fake, query.end, available_now, failOnDataLoss="false").until({("harmed", 0, 2)})


def set_target(run: Query) -> None:
    """As the first batch of the run does."""
    assert run.driver._planner._target is not None
    run.driver._planner._target.set_once()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_log_truncated_during_the_run_fails_the_run_or_lowers_its_target(fake: FakeKafka, fail: str) -> None:
    run = Query(fake, available_now=True, failOnDataLoss=fail)
    set_target(run)
    truncated(fake)
    if fail == "true":
        with pytest.raises(DataLoss, match="harmed-0 ends at offset 2, before offset 5 where this run was to end"):
            run.until(set())
    else:
        run.until(set())
        assert fake.group("g").offsets["harmed", 0][0] == 2


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_recreated_topic_of_another_member_fails_a_run_or_lowers_its_target(fake: FakeKafka, fail: str) -> None:
    # No member looks at the topics again, so none asks for a rebalance.
    members: dict[str, Any] = {"kafka.metadata.max.age.ms": "3600000", "failOnDataLoss": fail}
    other = Query(fake, **members).read_all()
    run = Query(fake, other.end, available_now=True, **members)
    set_target(run)
    both = run, other
    assert eventually(lambda: [len(each.driver._member.snapshot().readable) for each in both] == [2, 2])
    topic, *_ = {"gone", "harmed", "other"} - {tp.topic for tp in run.driver._member.snapshot().readable}
    fake.delete_topic(topic)
    fake.create_topic(topic, partitions=2 if topic == "harmed" else 1)
    if fail == "true":
        with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 0, before offset 5 where this run was to end"):
            run.step()
    else:
        assert not run.step()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_committed_offset_behind_the_end_of_the_log_is_data_loss(fake: FakeKafka, available_now: bool) -> None:
    fake.commit("g", {("harmed", 1): 50})
    query = Query(fake, None, available_now)
    with pytest.raises(DataLoss, match="harmed-1 ends at offset 5, before offset 50"):
        query.step()
    query.close()
    accepted = Query(fake, None, available_now, failOnDataLoss="false").until({("other", 0, 4)})
    assert not any(row[:2] == ("harmed", 1) for row in accepted.rows)
    assert fake.group("g").offsets["harmed", 1][0] == 5


def test_an_end_offset_that_is_too_low_once_is_no_data_loss(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(fake).read_all()
    whole = fake.logs["harmed"][0].batches
    truncated(fake)

    def healed(_: float) -> None:
        fake.logs["harmed"][0].batches, fake.logs["harmed"][0].end = whole, 5

    monkeypatch.setattr("spark_group_source.query.truncation.time.sleep", healed)
    fill(fake, "other", 0, 1)
    query.until({MARKER})


def test_a_topic_that_never_existed_is_an_error_even_if_data_loss_is_accepted(fake: FakeKafka) -> None:
    with pytest.raises(TopicError, match="'nowhere' cannot be read"):
        Query(fake, subscribe="gone,nowhere", failOnDataLoss="false")


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_deleted_while_stopped_is_data_loss_for_a_pattern_too(fake: FakeKafka, available_now: bool) -> None:
    query = Query(fake, subscribePattern="gone|harmed").read_all()
    query.close()
    deleted(fake)
    with pytest.raises(DataLoss, match="gone does not exist any more"):
        Query(fake, query.end, available_now, subscribePattern="gone|harmed")
    # A topic that is no longer subscribed may be deleted.
    Query(fake, query.end, available_now, subscribePattern="harmed").close()


def test_a_topic_deleted_and_revoked_during_a_batch_is_data_loss(fake: FakeKafka) -> None:
    query = Query(fake).read_all()
    fill(fake, "other", 0, 1)
    batch = query.driver.plan_batch(query.end, None)
    assert [each.topic for each in batch.reads()] == ["other"]
    deleted(fake)
    eventually(lambda: "gone" not in {tp.topic for tp in query.driver._member.snapshot().owned})
    with pytest.raises(DataLoss, match="gone does not exist any more"):
        eventually(lambda: query.driver.plan_batch(batch, None) is None)  # during a rebalance there is no data loss yet


def test_a_topic_recreated_while_a_query_does_not_own_it_is_no_added_one_that_starts_at_latest(fake: FakeKafka) -> None:
    accepts: dict[str, Any] = {"failOnDataLoss": "false", "startingOffsets": "latest"}
    query = Query(fake, **accepts).read_all()
    query.close()
    recreated("gone", 3)(fake)
    fill(fake, "other", 0, 1)
    without = Query(fake, query.end, subscribe="harmed,other", **accepts).until(set(of("other", 0, 5, 6)))
    without.close()
    assert Query(fake, without.end, **accepts).until(set(of("gone", 0, 0, 3))).rows == of("gone", 0, 0, 3)


def test_a_new_partition_without_first_record_is_data_loss(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(fake).read_all()
    query.close()
    create(fake, "gone", 0, 5)
    fake.truncate("gone", 1, 3)
    with pytest.raises(DataLoss, match="gone-1 at offset 3.*failOnDataLoss.*--reset-offsets"):
        Query(fake, query.end).step()
    with caplog.at_level(logging.WARNING):
        accepted = Query(fake, query.end, failOnDataLoss="false").until({("gone", 1, 4)})
    assert accepted.rows == of("gone", 1, 3, 5)
    assert "gone-1 at offset 3. The query reads these partitions from these offsets" in caplog.text


@pytest.mark.parametrize("how", ["running", "restarted without a commit", "with a new checkpoint"])
def test_a_log_that_diverged_is_data_loss_whatever_its_length(how: str) -> None:
    with running() as fake, pytest.raises(DataLoss, match=DIVERGED):
        after(diverged(9), fake, how, "true").until({("nothing", 0, 0)})
    expected = [MARKER, *of("harmed", 0, 2, 9)]
    with running() as fake:
        found = after(diverged(9), fake, how, "false").until(set(expected))
        assert sorted(found.rows) == sorted(expected)
        assert moved_to(fake) == 9
        assert fake.group("g").epochs["harmed", 0] == 1
        found.close()
        # A loss that was accepted is none for the next run.
        fill(fake, "harmed", 0, 1)
        assert Query(fake, found.end).until({("harmed", 0, 9)}).rows == of("harmed", 0, 9, 10)


@pytest.mark.parametrize("how", ["running", "restarted without a commit", "with a new checkpoint"])
def test_an_election_without_lost_records_is_no_data_loss(fake: FakeKafka, how: str) -> None:
    expected = [MARKER, *of("harmed", 0, 5, 7)]
    assert sorted(after(diverged(7, end=5), fake, how, "true").until(set(expected)).rows) == sorted(expected)
    assert fake.group("g").epochs["harmed", 0] == 1


def test_a_batch_replayed_after_an_election_is_data_loss_or_read_up_to_the_truncation(fake: FakeKafka) -> None:
    failing = Query(fake)
    batch = failing.driver.plan_batch(failing.end, None)
    diverged(9)(fake)
    with pytest.raises(DataLoss, match=r"\[2, 5\) of harmed-0.*truncated at offset 2"):
        failing.read(batch)
    failing.close()
    reading = Query(fake, batch, failOnDataLoss="false")
    reading.read(batch)
    assert reading.harmed() == of("harmed", 0, 0, 2)
    reading.rows.clear()
    assert reading.until({("harmed", 0, 8)}).rows == of("harmed", 0, 2, 9)


def test_a_checkpoint_and_commits_without_epochs_are_read(fake: FakeKafka) -> None:
    reading = Query(fake).read_all()
    reading.close()
    old = BatchOffset.from_ranges(
        OffsetRange(*each.tp, each.start, each.end, each.topic_id) for each in reading.end.ranges.values()
    )
    fake.commit("g", {("harmed", 0): 5, ("other", 0): 5}, COMMIT_TAG)
    diverged(9)(fake)
    found = Query(fake, old).until({("harmed", 0, 8)})
    assert found.rows == of("harmed", 0, 5, 9)
    assert found.end.ranges[HARMED].epoch == 1


def test_positions_of_brokers_without_topic_ids_get_the_id_of_the_present_topic(fake: FakeKafka) -> None:
    """Also those of other members. Otherwise no batch would count as completed: an offset has one id for each topic."""
    reading = Query(fake).read_all()
    reading.close()
    without_ids = [OffsetRange(*each.tp, each.start, each.end) for each in reading.end.ranges.values()]
    fill(fake, "harmed", 1, 2)
    found = Query(fake, BatchOffset.from_ranges(without_ids), assign='{"harmed": [1]}').until({("harmed", 1, 6)})
    eventually(lambda: fake.group("g").offsets["harmed", 1][0] == 7)
    ids = {each.topic_id for each in found.end.ranges.values() if each.topic == "harmed"}
    assert ids == {str(fake.ids["harmed"])}


def test_a_partition_whose_new_leader_does_not_answer_waits_and_the_others_are_read(fake: FakeKafka) -> None:
    reading = Query(fake).read_all()
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
def test_the_end_of_a_log_proves_nothing_before_its_new_leader_answers(fake: FakeKafka, available_now: bool) -> None:
    reading = Query(fake, failOnDataLoss="false").read_all()
    if available_now:
        reading.close()
        fill(fake, "harmed", 0, 3)
        reading = Query(fake, reading.end, available_now, failOnDataLoss="false")
        set_target(reading)
    fake.next("OffsetForLeaderEpoch", Fault(error=74), times=3)
    diverged(4)(fake)
    if available_now:
        assert reading.step(), "the run ends"
    assert reading.until({("harmed", 0, 3)}).rows == of("harmed", 0, 2, 4)


def test_a_leader_older_than_the_position_is_not_read_until_the_timeout(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        fake.elect("harmed")
    reading = Query(fake).read_all()
    assert reading.end.ranges[HARMED].epoch == 3
    reading.close()
    fake.logs["harmed"][0].epochs = [(1, 0)]
    fill(fake, "harmed", 0, 2)
    fill(fake, "other", 0, 1)
    waiting = Query(fake, reading.end, failOnDataLoss="false").until({MARKER})
    assert waiting.rows == [MARKER]
    assert (
        "harmed-0 is not read while the epoch of its leader (1) is older than the epoch of the query's position (3)"
        in caplog.text
    )
    waiting.close()
    monkeypatch.setattr(epoch_check, "OLDER_EPOCH_TIMEOUT", 0.05)
    failing = Query(fake, reading.end)
    with pytest.raises(DataLoss, match="The leader of harmed-0 has epoch 1, older than epoch 3 under which.* offset 5"):
        failing.until({("harmed", 0, 6)})
    failing.close()
    found = Query(fake, waiting.end, failOnDataLoss="false").until(set(of("harmed", 0, 5, 7)))
    assert found.rows == of("harmed", 0, 5, 7)


def test_an_open_transaction_before_the_position_is_no_data_loss(fake: FakeKafka) -> None:
    committed: dict[str, Any] = {"kafka.isolation.level": "read_committed"}
    query = Query(fake, **committed).read_all()
    fake.logs["harmed"][0].stable = 2
    fill(fake, "other", 0, 1)
    query.until({MARKER})


@pytest.mark.parametrize("pinned", [False, True])
def test_a_log_that_diverged_before_the_first_batch_is_read_from_there(fake: FakeKafka, pinned: bool) -> None:
    starts = {HARMED: PinnedStart(str(fake.ids["harmed"]), 5, 0)}
    given: dict[str, Any] = {"startingOffsets": "latest", "failOnDataLoss": "false"}
    if pinned:
        diverged(9)(fake)
        reading = Query(fake, BatchOffset({}, "g", starts), **given)
    else:
        reading = Query(fake, **given)
        assert (fake.group("g").offsets["harmed", 0][0], fake.group("g").epochs["harmed", 0]) == (5, 0)
        diverged(9)(fake)
    assert reading.until({("harmed", 0, 8)}).harmed() == of("harmed", 0, 2, 9)


def test_there_is_one_epoch_lookup_for_each_change_of_leader(fake: FakeKafka) -> None:
    reading = Query(fake).read_all()
    for _ in range(20):
        reading.step()
    assert not fake.request_count("OffsetForLeaderEpoch")
    fake.elect("harmed", leader=2)
    fake.elect("other", leader=2)
    for _ in range(20):
        reading.step()
    # The same broker leads both partitions.
    assert fake.request_count("OffsetForLeaderEpoch") == 1


def test_a_process_that_is_suspended_during_a_lookup_repeats_it_soon(hand: Hand) -> None:
    asked = []

    def topics(*_: object, **__: object) -> None:
        asked.append(hand.now)
        hand.now += 3600.0
        raise BrokerUnavailable("No broker.")

    check = EpochCheck(SimpleNamespace(topics=topics), OffsetTracker(), hand)  # type: ignore[arg-type]
    for pause in (0.0, 2.0, 2.0):
        hand.now += pause
        check.diverged({HARMED: OwnedPartition(position=5, epoch=1)}, {HARMED: 2})
    assert len(asked) == 2


def test_one_lost_response_to_an_epoch_lookup_delays_the_next_by_seconds_and_many_by_half_a_minute(hand: Hand) -> None:
    """Each lookup holds up the batches of the other partitions, so its time and the pause after it grow together."""
    asked = []

    def topics(names: object, deadline: Deadline, **_: object) -> None:
        asked.append((hand.now, deadline.remaining()))
        hand.now += deadline.remaining()
        raise BrokerUnavailable("No response.")

    check = EpochCheck(SimpleNamespace(topics=topics), OffsetTracker(), hand)  # type: ignore[arg-type]

    def ask_until(now: float) -> None:
        while hand.now < now:
            check.diverged({HARMED: OwnedPartition(position=5, epoch=1)}, {HARMED: 2})
            hand.now += 0.5

    ask_until(140.0)
    pauses = [after - before - timeout for (before, timeout), (after, _) in pairwise(asked)]
    assert [timeout for _, timeout in asked] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert pauses == pytest.approx([3.0, 6.0, 12.0, 24.0, 30.0], abs=1.0)


def test_a_topic_has_the_id_that_the_coordinator_knows_whose_offset_is_one_in_that_topic(fake: FakeKafka) -> None:
    fake.move_coordinator(2)
    fake.freeze_metadata(2)
    former = str(fake.ids["gone"])
    recreated("gone", 8)(fake)
    query, deadline = Query(fake, failOnDataLoss="false"), Deadline.after(TIMEOUT)
    clients = KafkaClients.connect(query._options.group, Timings())
    assert clients.cluster.topics({"gone"}, deadline, fresh=True)["gone"].id == str(fake.ids["gone"])
    found = clients.offsets.topics({"gone"}, deadline)
    assert not isinstance(found, RequestFailed)
    assert found["gone"].id == former
    clients.cluster.close()


def test_a_former_id_at_a_lagging_broker_is_no_truncation(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(fake, failOnDataLoss="false").read_all()
    fake.freeze_metadata(2)
    recreated("harmed", 3)(fake)
    fill(fake, "other", 0, 1)
    query.until({MARKER})
    assert "end of the log" not in caplog.text
    fake.thaw_metadata(2)
    assert query.until(set(of("harmed", 0, 0, 3))).harmed() == of("harmed", 0, 0, 3)


def test_the_end_of_a_former_topic_is_forgotten(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(fake, failOnDataLoss="false")
    ids = query.driver._planner._topic_ids

    def of_the_successor(topics: set[str]) -> dict[str, str]:
        monkeypatch.undo()
        recreated("gone", 3)(fake)
        return ids.ids_of(topics)

    monkeypatch.setattr(ids, "ids_of", of_the_successor)
    query.driver.plan_batch(query.end, None)
    assert query.driver.end_offsets().get(TopicPartition("gone", 0)) is None


def test_a_deposed_leader_that_old_metadata_names_confirms_no_position(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([EpochEndOffset(leader_epoch=1, end_offset=9), EpochEndOffset(leader_epoch=2, end_offset=3)])
    monkeypatch.setattr(epoch_check, "current_epoch_end_offsets", lambda *_: {HARMED: next(answers)})
    check = EpochCheck(SimpleNamespace(), OffsetTracker(), hand)  # type: ignore[arg-type]
    owned, leader_epochs = {HARMED: OwnedPartition(position=5, epoch=1)}, {HARMED: 2}
    assert check.diverged(owned, leader_epochs) == {}
    assert check.unconfirmed == {HARMED}, "the leader of epoch 2 has not answered"
    hand.now += 60.0
    assert check.diverged(owned, leader_epochs) == {HARMED: LogTruncation(epoch=1, leader=2, end=3)}


def test_a_deleted_topic_of_a_pattern_is_forgotten_and_read_from_earliest_when_it_is_recreated(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_offsets, "UNKNOWN_INTERVAL", 0.5)
    query = Query(fake, failOnDataLoss="false", subscribePattern="gone|harmed|other").read_all()
    former, gone = fake.ids["gone"], TopicPartition("gone", 0)
    fake.delete_topic("gone")

    def is_forgotten() -> bool:
        fill(fake, "other", 0, 1)  # no batch is planned only to drop the topic
        query.step()
        return "gone" not in query.driver._planner._topic_ids.read

    eventually(is_forgotten)
    assert gone not in query.end.ranges
    assert gone not in query.driver._tracker._history.ranges
    assert not query.driver._planner._data_loss.deleted
    asked = len(fake.requests)

    def lookups() -> list[set[str]]:
        found = [request.topics for api, _, request in fake.requests[asked:] if api == "Metadata"]
        return [{topic.name for topic in topics} for topics in found if topics is not None]

    eventually(lambda: not query.step() and len(lookups()) > 5)
    assert not any("gone" in named for named in lookups())
    create(fake, "gone", 3)
    assert query.until({("gone", 0, 2)}).rows[-3:] == of("gone", 0, 0, 3)
    assert query.end.ranges[gone].topic_id == str(fake.ids["gone"]) != str(former)


def test_the_pinned_start_of_a_deleted_topic_is_forgotten(fake: FakeKafka) -> None:
    never_owned = {TopicPartition("gone", 1): PinnedStart(str(fake.ids["gone"]), 0, 0)}
    never_owned |= {TopicPartition("never", 0): PinnedStart("an id", 0, 0)}
    query = Query(fake, BatchOffset({}, "g", never_owned), subscribePattern="gone|harmed|never|other")
    eventually(lambda: not query.step() and not query.driver._tracker.pinned_starts().offsets.keys() - {("gone", 1)})
    fill(fake, "other", 0, 1)
    query.until({MARKER})
    assert query.end.pinned_starts.keys() == {("gone", 1)}, "the topic exists, and that may be a broker's old metadata"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("silent", [False, True], ids=["without a leader", "with a silent leader"])
def test_latest_is_where_the_log_ended_at_the_start_also_if_no_leader_answered_then(
    fake: FakeKafka, silent: bool, restarted: bool
) -> None:
    log, given = fake.logs["harmed"][0], dict[str, Any](startingOffsets="latest")
    if silent:
        fake.next("ListOffsets", Fault(edit=partial(not_leader, HARMED)), times=10_000)
    else:
        fake.elect("harmed")
        log.leader = None
    query = Query(fake, **given)
    fill(fake, "other", 0, 1)
    query.until({MARKER})
    assert HARMED not in query.end.ranges
    if restarted:
        query.close()
        query = Query(fake, BatchOffset.from_json(query.end.as_json()), **given)
    fake.clear_faults()
    if not silent:
        fake.elect("harmed", leader=2)
    # A leader that did not answer may have taken records: their time shows it. Other records need none.
    times = [round(time.time() * 1000)] * 2 if silent else [0, 0]
    for at in times:
        fake.produce("harmed", ["later"], timestamp=at)
    assert query.until({("harmed", 0, 6)}).harmed() == of("harmed", 0, 5, 7)


def test_the_time_of_records_does_not_move_the_end_of_a_log_without_a_leader(fake: FakeKafka) -> None:
    fake.produce("harmed", ["of the future"], timestamp=round(time.time() * 1000) + 10**9)
    fake.elect("harmed")
    fake.logs["harmed"][0].leader = None
    query = Query(fake, startingOffsets="latest")
    fake.elect("harmed", leader=2)
    fill(fake, "harmed", 0, 1)
    assert query.until({("harmed", 0, 6)}).harmed() == of("harmed", 0, 6, 7)


def test_latest_is_not_behind_an_epoch_that_ended_after_the_start(fake: FakeKafka) -> None:
    fake.next("ListOffsets", Fault(edit=partial(not_leader, HARMED)), times=10_000)
    query = Query(fake, startingOffsets="latest")
    fake.elect("harmed", leader=2)
    fill(fake, "harmed", 0, 2)  # by a producer whose clock is slow
    fake.clear_faults()
    assert query.until({("harmed", 0, 6)}).harmed() == of("harmed", 0, 5, 7)


def test_an_epoch_that_the_other_thread_has_set_meanwhile_stays() -> None:
    tracker, me = OffsetTracker(), Membership(owned={HARMED: 1})
    tracker.restore(BatchOffset.from_ranges([OffsetRange("harmed", 0, 0, 5, "id", 4)]), PinnedStarts())
    tracker.partitions_assigned(frozenset({HARMED}), me)
    with tracker.start_lookup(frozenset({HARMED})) as lookup:
        tracker.record_starts(lookup, {HARMED: Start(5, StartRule.LOGGED)}, {}, {"harmed": "id"}, 0.0)
    for other in (
        OwnedPartition(position=5, epoch=3, topic_id="id"),
        OwnedPartition(position=3, epoch=4, topic_id="id"),
        OwnedPartition(position=5, epoch=4, topic_id="former"),
    ):
        tracker.advance_epochs({HARMED: other}, {HARMED: 7})
        assert tracker.positions(me)[HARMED].epoch == 4
    tracker.advance_epochs({HARMED: OwnedPartition(position=5, epoch=4, topic_id="id")}, {HARMED: 6})
    assert tracker.positions(me)[HARMED].epoch == 6
