"""The contract's bench: queries driven as Spark drives them, on a fake Kafka and on a real one, with both protocols."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.classic.messages import MembershipRequests
from spark_group_source.group.commits import CommittedOffset, GroupOffsets
from spark_group_source.group.consumer.messages import build_leave
from spark_group_source.group.consumer.states import ConsumerMembership
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Membership, Phase, RequestFailed
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.driver import Driver
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from tests.conftest import WITHOUT_KIP_848
from tests.fake import FakeKafka, Fault, releases
from tests.simulation.items import run_item

TIMEOUT_S = 90.0
"""Seconds until a wait fails; the tests are much faster."""

POLL = 0.01

BASE = {
    "startingOffsets": "earliest",
    "kafka.heartbeat.interval.ms": "50",
    "kafka.session.timeout.ms": "10000",
    "kafka.max.poll.interval.ms": "120000",
    "offsetCommit.retryIntervalMs": "50",
}
"""Options of all queries; a test may override them."""

CONSUMER_BASE = {name: value for name, value in BASE.items() if "heartbeat" not in name} | {
    "kafka.group.protocol": "consumer"
}
"""The same with the group protocol of KIP-848. The brokers set the interval. They also set the session timeout, which a
member does not learn: :meth:`Bench.options` sets the one that it believes."""

BASES = {"classic": BASE, "consumer": CONSUMER_BASE}
"""By group protocol."""

EPOCHS: dict[str, Callable[[int], bool]] = {
    "JoinGroup": lambda epoch: epoch == 0,
    "Heartbeat": lambda epoch: epoch > 0,
    "LeaveGroup": lambda epoch: epoch < 0,
}
"""The requests of the classic protocol that ConsumerGroupHeartbeat replaces, by its epoch."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test with both group protocols, unless its marker ``one_protocol`` names one, with the reason."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "protocol" in metafunc.fixturenames and not any("protocol" in mark.args[0] for mark in marks):
        only = metafunc.definition.get_closest_marker("one_protocol")
        assert only is None or only.kwargs["reason"], "a reason says why the test has no meaning for the other protocol"
        metafunc.parametrize("protocol", BASES if only is None else only.args)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs the tests on the fake in virtual time, unless their marker ``real_time`` says why not.

    pytest calls this hook for the tests of all directories.
    """
    real = any(item.get_closest_marker(name) for name in ("real_time", "integration"))
    here = Path(__file__).parent in item.path.parents
    if real or not here or not {"unique", "fake"}.intersection(getattr(item, "fixturenames", ())):
        return None
    run_item(item, nextitem)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests on a real Kafka; those of its newest protocol are core: coordinators differ by release."""
    for item in items:
        chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if chosen.get("bench") == "real":
            item.add_marker(pytest.mark.integration)
            if chosen.get("protocol") == ("classic" if WITHOUT_KIP_848 else "consumer"):
                item.add_marker(pytest.mark.core)


def eventually(condition: Callable[[], Any], what: str = "") -> Any:
    """Waits until ``condition`` returns a true value, and returns it."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:.0f} s: {what or condition}"
        time.sleep(POLL)
    return value


class Background:
    """A call on a thread of its own; :meth:`result` waits for what it returns."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._found.append(call()), daemon=True)
        self._thread.start()

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(TIMEOUT_S)
        assert not self.waits, f"still waiting after {TIMEOUT_S:.0f} s"
        return self._found[0]


class Query:
    """One streaming query: ``end`` is the end of its last completed batch, ``read`` the ranges of its batches."""

    def __init__(self, options: SourceOptions, logged: BatchOffset, client_id: str) -> None:
        self.driver = Driver(options.with_client_id(client_id), application_id="app")
        self.end = logged
        self.running: BatchOffset | None = None
        self.read: list[OffsetRange] = []

    def start(self, *, available_now: bool = False, replayed: bool = False) -> Query:
        self.driver.start(self.end, replayed=replayed)
        if available_now:
            self.driver.prepare_for_available_now()
        self.driver.await_assignment()
        return self

    def poll(self, limit: int | None = None) -> list[OffsetRange]:
        """Calls latestOffset as Spark does; returns the ranges of the batch that begins, empty if none does."""
        assert self.running is None, "a batch is running"
        planned = self.driver.plan_batch(self.end, limit)
        if planned is self.end:
            return []
        assert planned != self.end, "Spark does not run a batch that is equal to the last one"
        self.running = planned
        self.read += planned.reads()
        if not planned.reads():
            self.finish()  # Spark completes a batch without rows at once
        return planned.reads()

    def until_end(self) -> None:
        """Runs an AvailableNow run to its end: Spark asks until there is nothing new."""
        last = None
        while last is not self.end:
            last = self.end
            if self.poll():
                self.finish()

    def begin(self, limit: int | None = None) -> list[OffsetRange]:
        """Waits for the next batch, and returns its ranges."""
        return list(eventually(lambda: self.poll(limit), "a batch"))

    def finish(self) -> None:
        """Completes the running batch; the next poll passes its end."""
        assert self.running is not None, "no batch is running"
        self.end, self.running = self.running, None

    def complete(self) -> None:
        """Completes the running batch as its report does, and waits for the answer to its commit."""
        self.finish()
        self.driver.complete(self.end)
        self.driver._assigned_partitions.committer.wait()

    def run_batch(self) -> None:
        self.begin()
        self.finish()

    def advance(self, limit: int | None = None) -> Query:
        """Runs one batch, if there is something to read."""
        if self.running is None and self.poll(limit):
            self.finish()
        return self

    def idle(self) -> Query:
        """Runs batches until no new records are left."""
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
        positions = self.driver._assigned_partitions.tracker.positions(self.me)
        return {tp.partition for tp in self.me.readable if tp in positions}

    def close(self) -> None:
        self.driver.close()


class Bench:
    """The topic and the group of one test."""

    def __init__(self, kafka: FakeKafka | EmbeddedKafka, topic: str, group: str, base: dict[str, str] = BASE) -> None:
        self.kafka = kafka
        self._base = base
        self.topic = topic
        self.group = group
        self._queries: list[Query] = []
        self.cluster = Cluster(self.options().with_client_id("operator").wire)
        self._operator = GroupOffsets(self.cluster, self.options().group)

    def options(self, **overrides: str) -> SourceOptions:
        base = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, "kafka.group.id": self.group}
        if not overrides.keys() & {"subscribePattern", "assign"}:
            base["subscribe"] = self.topic
        given = self._base | base | {key.replace("_", "."): value for key, value in overrides.items()}
        if given.get("kafka.group.protocol") != "consumer":
            return parse_options(given)
        # With KIP-848 a user cannot set these.
        interval, session = given.pop("kafka.heartbeat.interval.ms", None), given.pop("kafka.session.timeout.ms", None)
        if interval is not None:
            self.fake.heartbeat_interval = float(interval) / 1000
        parsed = parse_options(given)
        timeout = parsed.group.session_timeout if session is None else float(session) / 1000
        return replace(parsed, group=replace(parsed.group, session_timeout=timeout))

    @property
    def fake(self) -> FakeKafka:
        assert isinstance(self.kafka, FakeKafka)
        return self.kafka

    def _sent_as(self, api: str) -> tuple[str, Callable[[Any], bool]]:
        """How a request with this classic name is sent, and which of those requests it is."""
        if "kafka.group.protocol" in self._base and (has := EPOCHS.get(api)) is not None:
            return "ConsumerGroupHeartbeat", lambda request: has(request.member_epoch)
        return api, lambda request: True

    def next(self, api: str, fault: Fault, times: int = 1) -> None:
        """As :meth:`FakeKafka.next`, for the classic name of a request in either group protocol."""
        sent, only = self._sent_as(api)
        self.fake.next(sent, fault if sent == api else replace(fault, only=only), times)

    def requests(self, api: str) -> list[tuple[int, Any]]:
        """Broker and request of each request so far, by its classic name in either group protocol."""
        sent, only = self._sent_as(api)
        return [(node, request) for name, node, request in self.fake.requests if name == sent and only(request)]

    def request_count(self, api: str) -> int:
        return len(self.requests(api))

    def await_request(self, api: str, more: int = 1) -> None:
        """Waits for this number of further requests."""
        enough = self.request_count(api) + more
        eventually(lambda: self.request_count(api) >= enough, f"{more} further {api}")

    def await_fault(self, api: str) -> None:
        """Waits until no fault of this request is left."""
        eventually(lambda: not self.has_faults(api), f"the fault of {api}")

    def has_faults(self, api: str) -> bool:
        """Whether faults of this request have not happened yet."""
        return bool(self.fake._faults._queued[self._sent_as(api)[0]])

    def query(self, logged: BatchOffset | None = None, **options: str) -> Query:
        """Creates a query of the group, without starting it."""
        parsed = self.options(**options)
        client_id = parsed.wire.client_id or f"contract-app-{len(self._queries)}"
        self._queries.append(Query(parsed, logged or BatchOffset(), client_id))
        return self._queries[-1]

    def start(self, logged: BatchOffset | None = None, **options: str) -> Query:
        """Starts a query, and waits for its assignment."""
        return self.query(logged, **options).start()

    def start_batch(self, *counts: int, **options: str) -> Query:
        """Produces records, and starts a query, to the middle of its batch of them."""
        self.produce(*counts)
        query = self.start(None, **options)
        query.begin()
        return query

    def join(self, logged: BatchOffset | None = None, **options: str) -> Query:
        """Starts a query, and does not wait for its assignment."""
        query = self.query(logged, **options)
        query.driver.start(query.end)
        return query

    def join_in_mid_batch(self, first: Query, **options: str) -> Query:
        """Starts a query, and waits until the revocation waits for the batch of the first one."""
        query = self.join(None, **options)
        eventually(lambda: first.me.phase is Phase.REVOKING, "the revocation to wait for the batch")
        return query

    @staticmethod
    def split(*queries: Query, meanwhile: Callable[[], Any] = lambda: None) -> None:
        """Waits until the queries share the four partitions evenly."""
        eventually(
            lambda: (meanwhile(), {len(each.owns()) for each in queries} == {4 // len(queries)})[1], "an even split"
        )

    def produce(self, *counts: int) -> None:
        """Produces this number of records to partition 0, 1, ..."""
        for number, count in enumerate(counts):
            if count:
                self.kafka.produce(self.topic, [f"v{each}" for each in range(count)], partition=number)

    def tp(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def committed(self) -> dict[int, int]:
        """The committed offset of each partition with a commit."""
        return {number: each.offset for number, each in self.commits().items()}

    def commits(self) -> dict[int, CommittedOffset]:
        partitions = [self.tp(number) for number in range(10)]

        def found() -> Any:
            result = self._operator.committed(partitions, Deadline.after(TIMEOUT_S))
            return None if isinstance(result, RequestFailed) else [result]

        (commits,) = eventually(found, "offsets")
        return {tp.partition: commit for tp, commit in commits.items()}

    def rewind(self, offsets: dict[int, int], metadata: str = "") -> None:
        """Resets the offsets of the group without members, as an operator does."""
        wanted = {self.tp(number): CommittedOffset(offset, metadata) for number, offset in offsets.items()}

        def done() -> bool:
            result = self._operator.commit(Membership(), wanted, Deadline.after(TIMEOUT_S))
            return result.failure is None and not result.errors

        eventually(done, "the operator's commit")

    def expire(self, query: Query) -> None:
        """Removes a query's member from the group, as if its session had timed out."""
        me, settings, deadline = query.me, self.options().group, Deadline.after(TIMEOUT_S)
        if isinstance(me, ConsumerMembership):
            client = CoordinatorClient(self.cluster, self.group, "expire")
            assert client.call(build_leave(me, settings), deadline).error_code == 0
        else:
            requests = MembershipRequests(self.cluster, settings)
            assert requests.leave(me.member_id, "expired by the test", deadline) is None

    def close(self) -> None:
        for query in self._queries:
            query.close()
        self.cluster.close()


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A fake Kafka with two brokers, in which tests may inject faults. OFFERED names another or an older one: see
    ``tests/fake/releases.py``."""
    with FakeKafka(brokers=2, offered=releases.ALL.get(os.environ.get("OFFERED", ""))) as running:
        yield running


@pytest.fixture
def on_fake(fake: FakeKafka, group: str, protocol: str) -> Iterator[Bench]:
    """A topic of four partitions on the fake. After the test, checks that no member's commit went backwards."""
    bench = Bench(fake, fake.create_topic("topic", partitions=4), group, BASES[protocol])
    yield bench
    bench.close()
    assert_commits_never_go_backwards(fake)


@pytest.fixture(params=["fake", "real"])
def bench(request: pytest.FixtureRequest, unique: Callable[[str], str], group: str, protocol: str) -> Iterator[Bench]:
    """A topic of four partitions, on the fake and on the real Kafka."""
    if request.param == "fake":
        yield request.getfixturevalue("on_fake")
        return
    kafka = request.getfixturevalue("kafka")
    real = Bench(kafka, kafka.create_topic(unique("contract"), partitions=4), group, BASES[protocol])
    yield real
    real.close()


def assert_commits_never_go_backwards(fake: FakeKafka) -> None:
    """Checks the commits of successive owners of a partition; an operator's commit (generation -1) may go back."""
    last: dict[tuple[str, str, int], int] = {}
    for commit in fake.commits:
        for (topic, number), offset in commit.offsets.items():
            if not commit.error:
                behind = last.get((commit.group, topic, number), -1)
                assert commit.generation < 0 or offset >= behind, f"{commit} goes back behind {behind}"
                last[commit.group, topic, number] = offset
