"""Every kind of data loss, with ``failOnDataLoss`` true and false. On a fake Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from spark_group_source.errors import DataLoss, TopicError
from spark_group_source.fetch import reader
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.group.offsets import COMMIT_TAG
from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import available_now, end_offsets, topics
from spark_group_source.query.driver import Driver
from spark_group_source.records.columns import arrow_schema
from tests.fake import FakeKafka

LONG = 90.0
MARKER = ("other", 0, 5)


class AnyLineage:
    """Equals the metadata of a commit of this source after somebody moved the partition."""

    def __eq__(self, metadata: object) -> bool:
        return str(metadata).startswith(f'{COMMIT_TAG} {{"lineage": ')

    __hash__ = None  # type: ignore[assignment]


ANY_LINEAGE: Any = AnyLineage()
Harm = Callable[[FakeKafka], None]
Row = tuple[str, int, int]
"""Topic, partition and offset of a record."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "UNKNOWN_TOPIC_TIMEOUT", 0.3)
    monkeypatch.setattr(available_now, "UNKNOWN_TIMEOUT", 0.3)
    monkeypatch.setattr(available_now, "POLL_INTERVALS", (0.01, 0.05))
    monkeypatch.setattr(end_offsets, "TRUNCATION_LOOKUP_INTERVAL", 0.01)
    monkeypatch.setattr(topics, "DELETED_INTERVAL", 0.01)


def fill(fake: FakeKafka, topic: str, partition: int, count: int) -> None:
    for each in range(count):
        fake.produce(topic, [str(each)], partition=partition)


def create(fake: FakeKafka, topic: str, *counts: int) -> None:
    fake.create_topic(topic, partitions=len(counts))
    for number, count in enumerate(counts):
        fill(fake, topic, number, count)


@contextmanager
def queries_closed() -> Iterator[None]:
    """Closes all queries of a test and the connections of their tasks."""
    yield
    while Query.made:
        Query.made.pop().close()
    for _, kept in reader._idle_clusters.values():
        kept.close()
    reader._idle_clusters.clear()


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A topic of two partitions and two of one, with five records each."""
    with FakeKafka() as running, queries_closed():
        create(running, "harmed", 5, 5)
        create(running, "gone", 5)
        create(running, "other", 5)
        yield running


class Query:
    """One run of a query; ``rows`` are the rows of its tasks, in batches that all succeeded."""

    made: ClassVar[list[Query]] = []
    """All queries of the test: the fixture closes them."""

    def __init__(self, fake: FakeKafka, logged: BatchOffset, available_now: bool = False, **given: Any) -> None:
        options = {
            "kafka.bootstrap.servers": fake.bootstrap_servers,
            "kafka.group.id": "g",
            "startingOffsets": "earliest",
            "kafka.heartbeat.interval.ms": "50",
            "kafka.metadata.max.age.ms": "100",
            "kafka.retry.backoff.ms": "5",
            "kafka.retry.backoff.max.ms": "10",
        }
        options |= {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "gone,harmed,other"}
        if "assign" in given:
            del options["kafka.heartbeat.interval.ms"]
        self._options = parse_options(options | given)
        self.rows: list[Row] = []
        self.end = logged
        self.driver = Driver(self._options)
        self.made.append(self)
        self.driver.start(logged)
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
        settings = replace(self._options.fetch, max_wait=0.01, poll_timeout=LONG)
        task = FetchTask(tuple(batch.reads()), self._options.wire, schema, settings)
        found = [row for part in read(task) for row in part.to_pylist()]
        self.rows += [(row["topic"], row["partition"], row["offset"]) for row in found]
        self.end = batch

    def until(self, rows: set[Row]) -> Query:
        """Runs until these rows were read and no more arrive."""
        deadline = time.monotonic() + LONG
        while not rows <= set(self.rows):
            self.step()
            assert time.monotonic() < deadline, self.rows
        for _ in range(5):
            self.step()
        return self

    def owned(self) -> set[str]:
        """Topics of the partitions that the query owns."""
        return {tp.topic for tp in self.driver._member.snapshot().owned}

    def close(self) -> None:
        self.driver.close()

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def of(topic: str, partition: int, start: int, end: int) -> list[Row]:
    return [(topic, partition, offset) for offset in range(start, end)]


# What may happen to records, before or after a query has read them


def retention_in_part(fake: FakeKafka) -> None:
    fill(fake, "harmed", 0, 5)
    fake.truncate("harmed", 0, 8)


def retention_of_all(fake: FakeKafka) -> None:
    fill(fake, "harmed", 0, 5)
    fake.truncate("harmed", 0, 10)


def deleted(fake: FakeKafka) -> None:
    fake.delete_topic("gone")


def recreated_with_fewer(fake: FakeKafka) -> None:
    fake.delete_topic("gone")
    create(fake, "gone", 3)


def recreated_with_as_many(fake: FakeKafka) -> None:
    fake.delete_topic("gone")
    create(fake, "gone", 5)


def recreated_with_more(fake: FakeKafka) -> None:
    fake.delete_topic("gone")
    create(fake, "gone", 9)


def recreated_with_fewer_partitions(fake: FakeKafka) -> None:
    fake.delete_topic("harmed")
    create(fake, "harmed", 9)


def truncated(fake: FakeKafka) -> None:
    log = fake.logs["harmed"][0]
    log.batches, log.end = log.batches[:2], 2


CASES: list[tuple[Harm, str, list[Row]]] = [
    (retention_in_part, r"\[5, 8\) of harmed-0.*log holds \[8, 10\).*failOnDataLoss", of("harmed", 0, 8, 10)),
    (retention_of_all, r"\[5, 10\) of harmed-0.*log holds \[10, 10\).*failOnDataLoss", []),
    (deleted, r"gone(-0)? does not exist any more.*failOnDataLoss", []),
    (recreated_with_fewer, r"Topic gone was deleted and recreated.*failOnDataLoss", of("gone", 0, 0, 3)),
    (recreated_with_as_many, r"Topic gone was deleted and recreated.*failOnDataLoss", of("gone", 0, 0, 5)),
    (recreated_with_more, r"gone was deleted and recreated|\[5, 9\) of gone-0.*was deleted", of("gone", 0, 0, 9)),
    (
        recreated_with_fewer_partitions,
        r"harmed was deleted and recreated|of harmed-0.*was deleted|harmed-1 does not exist",
        of("harmed", 0, 0, 9),
    ),
    (truncated, r"harmed-0 ends at offset 2, before offset 5.*failOnDataLoss", []),
]
NAMES = [harm.__name__ for harm, *_ in CASES]


def after(harm: Harm, fake: FakeKafka, how: str, fail: str) -> Query:
    """A query that had read everything before the harm, with one more record in another topic."""
    query = Query(fake, BatchOffset(), failOnDataLoss=fail)
    while query.step():
        pass
    query.rows.clear()
    if how != "running":
        query.close()
    harm(fake)
    fill(fake, "other", 0, 1)
    if how == "running":
        return query
    return Query(fake, query.end, how == "available now", failOnDataLoss=fail)


@pytest.mark.parametrize("how", ["running", "restarted", "available now"])
@pytest.mark.parametrize(("harm", "says"), [case[:2] for case in CASES], ids=NAMES)
def test_data_loss_fails_the_query_with_the_offsets_and_what_to_do(
    fake: FakeKafka, harm: Harm, says: str, how: str
) -> None:
    with pytest.raises(DataLoss, match=says):
        after(harm, fake, how, "true").until({("nothing", 0, 0)})


@pytest.mark.parametrize("how", ["running", "restarted", "available now"])
@pytest.mark.parametrize(("harm", "reads"), [case[::2] for case in CASES], ids=NAMES)
def test_without_fail_on_data_loss_the_query_warns_and_reads_exactly_the_available_records(
    fake: FakeKafka, harm: Harm, reads: list[Row], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        query = after(harm, fake, how, "false").until({MARKER, *reads})
    assert sorted(query.rows) == sorted([MARKER, *reads])
    assert "failOnDataLoss is false" in caplog.text
    query.close()


def test_a_truncated_log_is_read_from_its_end_which_is_committed(fake: FakeKafka) -> None:
    query = after(truncated, fake, "running", "false").until({MARKER})
    assert fake.group("g").offsets["harmed", 0] == (2, ANY_LINEAGE)
    fill(fake, "harmed", 0, 6)
    query.until(set(of("harmed", 0, 2, 8)))
    assert sorted(query.rows) == sorted([MARKER, *of("harmed", 0, 2, 8)])
    assert fake.group("g").offsets["harmed", 0][0] == 8
    query.close()


def test_the_position_in_a_truncated_log_is_logged_at_once_although_batches_wait_for_more_records(
    fake: FakeKafka,
) -> None:
    query = Query(fake, BatchOffset(), failOnDataLoss="false", minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    assert query.step()
    fill(fake, "other", 0, 1)
    assert not query.step()
    truncated(fake)
    query.until({MARKER})  # with the batch that logs the position
    assert query.end.ends()[TopicPartition("harmed", 0)] == 2
    fill(fake, "other", 0, 1)
    assert not query.step()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_batch_truncated_after_it_was_planned_is_read_to_the_new_end_and_later_records_follow(
    fake: FakeKafka, available_now: bool
) -> None:
    with Query(fake, BatchOffset(), available_now) as failing:
        batch = failing.driver.plan_batch(failing.end, None)
        truncated(fake)
        with pytest.raises(DataLoss, match=r"\[2, 5\) of harmed-0.*are lost: the log ends at 2"):
            failing.read(batch)
    with Query(fake, batch, available_now, failOnDataLoss="false") as query:
        query.read(batch)
        assert [row for row in query.rows if row[:2] == ("harmed", 0)] == of("harmed", 0, 0, 2)
        query.rows.clear()
        query.until(set())
        assert not query.rows
        assert fake.group("g").offsets["harmed", 0] == (2, ANY_LINEAGE)
        fill(fake, "harmed", 0, 1)
    Query(fake, query.end, available_now, failOnDataLoss="false").until({("harmed", 0, 2)})


def test_a_log_truncated_during_the_run_fails_the_run_or_lowers_its_target(fake: FakeKafka) -> None:
    def truncate_during_run(query: Query) -> None:
        assert query.driver._planner._target is not None
        query.driver._planner._target.set_once()
        truncated(fake)

    with Query(fake, BatchOffset(), available_now=True) as failing:
        truncate_during_run(failing)
        with pytest.raises(DataLoss, match="harmed-0 ends at offset 2, before offset 5 where this run was to end"):
            failing.until(set())
    fill(fake, "harmed", 0, 3)
    with Query(fake, BatchOffset(), available_now=True, failOnDataLoss="false") as query:
        truncate_during_run(query)
        query.until(set())
        assert fake.group("g").offsets["harmed", 0][0] == 2


@pytest.mark.parametrize("available_now", [False, True])
def test_a_committed_offset_behind_the_end_of_the_log_is_data_loss(fake: FakeKafka, available_now: bool) -> None:
    fake.commit("g", {("harmed", 1): 50})
    query = Query(fake, BatchOffset(), available_now)
    with pytest.raises(DataLoss, match="harmed-1 ends at offset 5, before offset 50"):
        query.step()
    query.close()
    accepted = Query(fake, BatchOffset(), available_now, failOnDataLoss="false")
    accepted.until({("other", 0, 4)})
    assert not any(row[:2] == ("harmed", 1) for row in accepted.rows)
    assert fake.group("g").offsets["harmed", 1][0] == 5
    accepted.close()


def test_an_open_transaction_before_the_position_is_no_data_loss(fake: FakeKafka) -> None:
    committed: dict[str, Any] = {"kafka.isolation.level": "read_committed"}
    query = Query(fake, BatchOffset(), **committed)
    while query.step():
        pass
    fake.logs["harmed"][0].stable = 2
    fill(fake, "other", 0, 1)
    query.until({MARKER})
    query.close()


def test_an_end_offset_that_is_too_low_once_is_no_data_loss(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(fake, BatchOffset())
    while query.step():
        pass
    whole = fake.logs["harmed"][0].batches
    truncated(fake)

    def healed(_: float) -> None:
        fake.logs["harmed"][0].batches, fake.logs["harmed"][0].end = whole, 5

    monkeypatch.setattr("spark_group_source.query.end_offsets.time.sleep", healed)
    fill(fake, "other", 0, 1)
    query.until({MARKER})
    query.close()


def test_a_topic_that_never_existed_is_an_error_even_if_data_loss_is_accepted(fake: FakeKafka) -> None:
    with pytest.raises(TopicError, match="'nowhere' cannot be read"):
        Query(fake, BatchOffset(), subscribe="gone,nowhere", failOnDataLoss="false")


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_deleted_while_the_query_was_stopped_is_data_loss_for_a_pattern_too(
    fake: FakeKafka, available_now: bool
) -> None:
    query = Query(fake, BatchOffset(), subscribePattern="gone|harmed")
    while query.step():
        pass
    query.close()
    deleted(fake)
    with pytest.raises(DataLoss, match="gone does not exist any more"):
        Query(fake, query.end, available_now, subscribePattern="gone|harmed")
    # A topic that is no longer subscribed may be deleted.
    Query(fake, query.end, available_now, subscribePattern="harmed").close()


def test_a_deleted_topic_that_is_created_again_does_not_count_as_added_to_subscribe(fake: FakeKafka) -> None:
    query = after(deleted, fake, "restarted", "false").until({MARKER})
    query.close()
    create(fake, "gone", 3)
    restarted = Query(fake, query.end, failOnDataLoss="false", startingOffsets="latest")
    assert restarted.until({("gone", 0, 0), ("gone", 0, 2)})


def test_a_topic_deleted_and_revoked_during_a_batch_is_data_loss(fake: FakeKafka) -> None:
    query = Query(fake, BatchOffset())
    while query.step():
        pass
    fill(fake, "other", 0, 1)
    batch = query.driver.plan_batch(query.end, None)
    assert [each.topic for each in batch.reads()] == ["other"]
    deleted(fake)
    deadline = time.monotonic() + LONG
    while any(tp.topic == "gone" for tp in query.driver._member.snapshot().owned):
        assert time.monotonic() < deadline
        time.sleep(0.01)

    def look() -> None:
        while time.monotonic() < deadline:  # during a rebalance there is no data loss yet
            query.driver.plan_batch(batch, None)
            time.sleep(0.01)

    with pytest.raises(DataLoss, match="gone does not exist any more"):
        look()
    query.close()


def test_a_topic_recreated_while_another_member_owned_it_resumes_at_that_members_commit(fake: FakeKafka) -> None:
    both: dict[str, Any] = {"subscribe": "gone,other", "failOnDataLoss": "false"}
    one = Query(fake, BatchOffset(), **both).until({("gone", 0, 4), ("other", 0, 4)})
    two = Query(fake, BatchOffset(), **both)
    deadline = time.monotonic() + LONG
    while len(one.owned()) + len(two.owned()) != 2 or not two.owned():
        assert time.monotonic() < deadline
        one.step()
    (name,) = two.owned()
    while name not in two.driver._planner._topic_ids.read:  # only then its position belongs to the old topic
        assert not two.step()
        assert time.monotonic() < deadline
    fake.delete_topic(name)
    create(fake, name, 3)
    two.until({(name, 0, 2)})
    while one.driver._planner._topic_ids.read[name] != str(fake.ids[name]):
        one.step()
        assert time.monotonic() < deadline
    two.close()
    fill(fake, name, 0, 2)
    before = len(one.rows)
    one.until({(name, 0, 4)})
    assert one.rows[before:] == of(name, 0, 3, 5)
    assert fake.group("g").offsets[name, 0][0] == 5


def test_a_topic_that_one_broker_does_not_know_is_no_data_loss(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(fake, BatchOffset())
    logs, ids = dict(fake.logs), dict(fake.ids)

    def learned(_: float) -> None:
        fake.logs.update(logs)
        fake.ids.update(ids)

    monkeypatch.setattr("spark_group_source.query.topics.time.sleep", learned)
    deleted(fake)
    query.driver._clients.cluster.invalidate_topics(["gone"])
    assert query.driver._planner._topic_ids.deleted({"gone", "other"}) == set()


def test_a_new_partition_that_does_not_begin_at_its_first_offset_is_data_loss(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(fake, BatchOffset())
    while query.step():
        pass
    query.close()
    create(fake, "gone", 0, 5)
    fake.truncate("gone", 1, 3)
    with pytest.raises(DataLoss, match="gone-1 at offset 3.*failOnDataLoss.*--reset-offsets"):
        Query(fake, query.end).step()
    with caplog.at_level(logging.WARNING):
        accepted = Query(fake, query.end, failOnDataLoss="false").until({("gone", 1, 4)})
    assert accepted.rows == of("gone", 1, 3, 5)
    assert "gone-1 at offset 3. They are read from there" in caplog.text
    accepted.close()


@pytest.mark.parametrize(
    ("harm", "says"), [(truncated, "harmed-0 ends at offset 2"), (deleted, "gone.* does not exist")]
)
def test_data_loss_with_assign_is_the_same(fake: FakeKafka, harm: Harm, says: str) -> None:
    assigned: dict[str, Any] = {"assign": '{"gone": [0], "harmed": [0], "other": [0]}'}
    query = Query(fake, BatchOffset(), **assigned)
    while query.step():
        pass
    query.close()
    harm(fake)
    fill(fake, "other", 0, 1)
    with pytest.raises(DataLoss, match=says):
        Query(fake, query.end, **assigned).step()
    accepted = Query(fake, query.end, **assigned, failOnDataLoss="false").until({MARKER})
    assert accepted.rows == [MARKER]
    accepted.close()
