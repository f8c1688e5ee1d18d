"""The contract's bench: queries driven as Spark drives them, on a fake Kafka and on a real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.group.member import Member
from spark_group_source.group.state import Membership
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.driver import Driver
from spark_group_source.query.group_settings import group_settings
from spark_group_source.testing.fake import FakeKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions

PATIENCE = 90.0
"""Seconds in which everything that is waited for has happened; the tests are much faster."""

POLL = 0.01


BASE = {
    "startingOffsets": "earliest",
    "kafka.heartbeat.interval.ms": "50",
    "kafka.session.timeout.ms": "10000",
    "kafka.max.poll.interval.ms": "120000",
}
"""Options of all queries, unless they say otherwise."""


class Kafka(Protocol):
    """What the bench needs of a cluster, fake or real."""

    @property
    def bootstrap_servers(self) -> str: ...

    def create_topic(self, name: str, partitions: int = 1) -> str: ...

    def produce(self, topic: str, rows: list[str], partition: int = 0) -> Any: ...


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """What ``condition`` returns, once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what or condition}"
        time.sleep(POLL)
    return found


class Query:
    """One streaming query: ``end`` is where its last completed batch ended, ``read`` what its batches covered."""

    def __init__(self, options: SourceOptions, logged: BatchOffset) -> None:
        wire = WireOptions(options.bootstrap_servers, "contract", request_timeout=options.request_timeout)
        self.driver = Driver(options, wire, application_id="app")
        self.end = logged
        self.running: BatchOffset | None = None
        self.read: list[OffsetRange] = []

    def start(self, *, available_now: bool = False) -> Query:
        self.driver.start(self.end)
        if available_now:
            self.driver.prepare_for_available_now()
        self.driver.await_assignment()
        return self

    def poll(self, limit: int | None = None) -> list[OffsetRange]:
        """Spark's latestOffset: what the batch that begins now reads, nothing if there is none."""
        assert self.running is None, "a batch is running"
        found = self.driver.plan_batch(self.end, limit)
        if found == self.end:
            return []
        if not found.reads():
            # A batch without rows, if it is one at all: Spark completes it at once.
            self.end = found
            return []
        self.running = found
        self.read += found.reads()
        return found.reads()

    def begin(self, limit: int | None = None) -> list[OffsetRange]:
        """The next batch, once there is one."""
        return list(eventually(lambda: self.poll(limit), "a batch"))

    def finish(self) -> None:
        """The running batch is completed; the next poll tells so."""
        assert self.running is not None, "no batch is running"
        self.end, self.running = self.running, None

    def idle(self) -> Query:
        """The query runs batches until there is nothing new."""
        while self.poll():
            self.finish()
        return self

    @property
    def me(self) -> Membership:
        return self.driver._member.snapshot()

    @property
    def member(self) -> Member:
        assert isinstance(self.driver._member, Member)
        return self.driver._member

    def owns(self) -> set[int]:
        """Numbers of the partitions that the next batch may read."""
        return {
            tp.partition for tp in self.me.readable if tp in self.driver._assigned_partitions.ledger.positions(self.me)
        }

    def close(self) -> None:
        self.driver.close()


class Bench:
    """A topic and a group of one test's own."""

    def __init__(self, kafka: Kafka, topic: str, group: str) -> None:
        self.kafka = kafka
        self.topic = topic
        self.group = group
        self._queries: list[Query] = []
        self._cluster = Cluster(WireOptions(self.options().bootstrap_servers, "operator"))
        self._operator = GroupOffsets(self._cluster, group_settings(self.options()))
        self._coordinator = MembershipRequests(self._cluster, group_settings(self.options()))

    def options(self, **given: str) -> SourceOptions:
        base = {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "kafka.group.id": self.group,
            "subscribe": self.topic,
        }
        return parse_options(BASE | base | {key.replace("_", "."): value for key, value in given.items()})

    def query(self, logged: BatchOffset | None = None, **options: str) -> Query:
        """A query of the group that is not started yet."""
        self._queries.append(Query(self.options(**options), logged or BatchOffset()))
        return self._queries[-1]

    def start(self, logged: BatchOffset | None = None, **options: str) -> Query:
        """A query that has its assignment."""
        return self.query(logged, **options).start()

    def produce(self, *counts: int) -> None:
        """So many records more in partition 0, 1, ..."""
        for number, count in enumerate(counts):
            if count:
                self.kafka.produce(self.topic, [f"v{each}" for each in range(count)], partition=number)

    def tp(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def committed(self) -> dict[int, int]:
        """The group's commit of each partition that has one."""
        return {number: each.offset for number, each in self.commits().items()}

    def commits(self) -> dict[int, CommittedOffset]:
        partitions = [self.tp(number) for number in range(10)]
        found = eventually(
            lambda: self._answer(self._operator.committed(partitions, Deadline.after(PATIENCE))), "offsets"
        )
        return {tp.partition: each for tp, each in found[0].items()}

    def _answer(self, found: Any) -> Any:
        return None if isinstance(found, RequestFailed) else [found]

    def rewind(self, offsets: dict[int, int], metadata: str = "") -> None:
        """Sets the offsets of the group, which has no members, as an operator does."""
        wanted = {self.tp(number): offset for number, offset in offsets.items()}

        def done() -> bool:
            answer = self._operator.commit(Membership(), wanted, metadata, Deadline.after(PATIENCE))
            return answer.failure is None and not answer.errors

        eventually(done, "the operator's commit")

    def expire(self, query: Query) -> None:
        """The session of a query's member ends."""
        assert self._coordinator.leave(query.me.member_id, "expired by the test", Deadline.after(PATIENCE)) is None

    def close(self) -> None:
        for query in self._queries:
            query.close()
        self._cluster.close()


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A fake Kafka of two brokers, which tests may break."""
    with FakeKafka(brokers=2) as running:
        yield running


@pytest.fixture
def on_fake(fake: FakeKafka, group: str) -> Iterator[Bench]:
    """A topic of four partitions on the fake. When the test is over, no commit of a member went backwards."""
    bench = Bench(fake, fake.create_topic("topic", partitions=4), group)
    yield bench
    bench.close()
    assert_commits_never_go_backwards(fake)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.integration)])
def bench(request: pytest.FixtureRequest, unique: Callable[[str], str], group: str) -> Iterator[Bench]:
    """A topic of four partitions, on the fake and on the real Kafka."""
    if request.param == "fake":
        yield request.getfixturevalue("on_fake")
        return
    kafka = request.getfixturevalue("kafka")
    real = Bench(kafka, kafka.create_topic(unique("contract"), partitions=4), group)
    yield real
    real.close()


def assert_commits_never_go_backwards(fake: FakeKafka) -> None:
    """While one member after the other owns a partition; an operator's commits (generation -1) start again."""
    last: dict[tuple[str, str, int], int] = {}
    for commit in fake.commits:
        for (topic, number), offset in commit.offsets.items():
            if not commit.error:
                behind = last.get((commit.group, topic, number), -1)
                assert commit.generation < 0 or offset >= behind, f"{commit} goes back behind {behind}"
                last[commit.group, topic, number] = offset


@pytest.fixture
def unique_group(unique: Callable[[str], str]) -> str:
    """Another group id."""
    return unique("other")
