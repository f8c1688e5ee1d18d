"""A coordinator that moves in the middle of a hand-over, and a member that is suspended with a batch in flight."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

from spark_group_source.clock import Deadline
from spark_group_source.group.membership import Phase
from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.conftest import KAFKA_3
from tests.contract.proxy import Proxy, ProxyFault
from tests.fake import FakeKafka, Fault
from tests.integration.commit_log import backward
from tests.integration.query_process import Place, QueryProcess, eventually, source_options
from tests.integration.reader import Reader
from tests.integration.standing import caught_up, fill, places_in

PARTITIONS = 4
TIMEOUT_S = 90.0
MOVE_S = 10.0
"""In which a new member must own its share, although a commit of the other failed."""

PROTOCOLS = pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=pytest.mark.skipif(KAFKA_3, reason="Kafka 4.0 has KIP-848"))]
)


@dataclass
class Query:
    """A query, driven batch by batch."""

    driver: Driver
    end: BatchOffset = field(default_factory=BatchOffset)
    running: BatchOffset | None = None
    places: list[Place] = field(default_factory=list)

    def begin(self) -> bool:
        """Begins a batch; false if there is nothing to read."""
        planned = self.driver.plan_batch(self.end, None)
        if planned == self.end:
            return False
        self.running = planned
        self.places += [(each.partition, at) for each in planned.reads() for at in range(each.start, each.end)]
        return True

    def finish(self) -> None:
        assert self.running is not None
        self.end, self.running = self.running, None

    def advance(self) -> bool:
        """Runs a batch if there is something to read; always true."""
        if self.begin():
            self.finish()
        return True

    def phase(self) -> Phase:
        return self.driver._member.snapshot().phase

    def owned(self) -> int:
        return len(self.driver._member.snapshot().readable)


@pytest.fixture
def nodes() -> Iterator[EmbeddedKafka]:
    """Three brokers of each test's own: it suspends or kills one."""
    with EmbeddedKafka(brokers=3, heap="384m", config={"min.insync.replicas": "1"}) as running:
        yield running


def coordinator(kafka: EmbeddedKafka, group: str) -> int:
    """The node that coordinates the group."""
    servers = [each.rsplit(":", 1) for each in kafka.bootstrap_servers.split(",")]
    with closing(Cluster(WireOptions(tuple((host, int(port)) for host, port in servers), "test"))) as cluster:
        return cluster.find_coordinator(group, Deadline.after(TIMEOUT_S)).id


@pytest.mark.slow
@PROTOCOLS
@pytest.mark.parametrize("fail", [EmbeddedKafka.pause, EmbeddedKafka.kill], ids=["suspended", "killed"])
def test_a_handover_goes_on_when_its_coordinator_fails(
    nodes: EmbeddedKafka, group: str, protocol: str, fail: Callable[[EmbeddedKafka, int], None]
) -> None:
    topic = nodes.create_topic("topic", PARTITIONS)
    fill(nodes, topic, 10)
    options = source_options(nodes, topic, group, protocol) | {"kafka.request.timeout.ms": "3000"}
    if protocol == "classic":
        options["kafka.session.timeout.ms"] = "45000"
    parsed = parse_options(options)
    with ExitStack() as running:

        def start() -> Query:
            query = Query(running.enter_context(closing(Driver(parsed.with_client_id("test")))))
            query.driver.start(query.end)
            return query

        first = start()
        first.driver.await_assignment()
        eventually(first.begin, what="a batch")
        second = start()
        eventually(lambda: first.phase() is Phase.REVOKING, what="the revocation to wait for the batch")
        failed = coordinator(nodes, group)
        fail(nodes, failed)
        first.finish()  # the commit, and then the acknowledgement, find another coordinator
        both = first, second

        def split() -> bool:
            return all(each.advance() for each in both) and first.owned() == second.owned() == PARTITIONS // 2

        took = eventually(split, TIMEOUT_S, "an even split")
        print(f"partitions moved {took:.1f} s after the coordinator failed")
        if fail is EmbeddedKafka.pause:
            nodes.resume(failed)
        else:
            nodes.start(failed)
        fill(nodes, topic, 10)
        eventually(lambda: all(each.advance() for each in both) and caught_up(nodes, topic, group), TIMEOUT_S, "all")
        assert sorted(first.places + second.places) == sorted(places_in(nodes, topic)), "every record once"
        assert first.driver.counters.lost == second.driver.counters.lost == 0


@pytest.mark.slow
@PROTOCOLS
def test_a_member_suspended_with_a_batch_in_flight_commits_nothing_of_it_after_its_session(
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    group: str,
    query: Callable[..., QueryProcess],
    start: Callable[..., Reader],
    protocol: str,
) -> None:
    name = topic(partitions=PARTITIONS)
    fill(kafka, name, 50)
    suspended = query(name, protocol=protocol).hold().start()
    suspended.await_held(0)
    in_flight = suspended.places()
    member = suspended.reader()
    os.kill(member, signal.SIGSTOP)
    try:
        other = start(name, protocol=protocol)
        everything = fill(kafka, name, 50)
        took = eventually(lambda: set(other.places) >= everything, what="the take-over")
        print(f"another query read all {took:.0f} s after the member was suspended")
        eventually(lambda: caught_up(kafka, name, group), what="its commits")
    finally:
        os.kill(member, signal.SIGCONT)
    suspended.release()
    before = len(suspended.batches())

    def both_read() -> bool:
        fill(kafka, name, 5)
        return len(suspended.batches()) > before

    suspended.until(both_read, what="reading on")
    eventually(lambda: caught_up(kafka, name, group), what="reading all")
    suspended.stop_between_batches()
    other.stop()
    times = Counter(suspended.places() + other.places)
    assert times.keys() == places_in(kafka, name), "every record was read"
    assert {place for place, count in times.items() if count > 1} <= set(in_flight), "only the batch in flight again"
    assert backward(kafka, group) == []


@dataclass
class Behind:
    """A Kafka that refuses or loses one commit of the query with the client id :data:`CLIENT`."""

    kafka: EmbeddedKafka | FakeKafka
    fail_next_commit: Callable[[], None]
    has_failed: Callable[[], bool]


CLIENT = "first"


@pytest.fixture(params=["refused", ProxyFault.CUT_BEFORE, ProxyFault.CUT_AFTER], ids=["refused", "lost", "unanswered"])
def failing_once(request: pytest.FixtureRequest) -> Iterator[Behind]:
    with ExitStack() as running:
        if request.param == "refused":  # no real coordinator does this at a moment that a test chooses
            fake = running.enter_context(FakeKafka())
            failed = threading.Event()
            fault = Fault(error=16, edit=lambda _: failed.set())
            yield Behind(fake, lambda: fake.next("OffsetCommit", fault), failed.is_set)
            return
        started: list[EmbeddedKafka] = []
        proxy = running.enter_context(
            closing(Proxy(lambda: int(started[0].address("PLAINTEXT").rpartition(":")[2]), CLIENT, delay=0.0))
        )
        config = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        started.append(running.enter_context(EmbeddedKafka(config=config)))
        yield Behind(started[0], lambda: proxy.arm("OffsetCommit", request.param), proxy.done)


def test_one_failed_commit_at_the_end_of_a_batch_keeps_no_partition_from_a_new_member(
    spark: SparkSession, failing_once: Behind, group: str
) -> None:
    """The query never plans its next batch (intervals count from 1970): its member's thread has to commit."""
    kafka = failing_once.kafka
    topic = kafka.create_topic("topic", PARTITIONS)

    def fill_all() -> None:
        for number in range(PARTITIONS):
            kafka.produce(topic, [f"v{each}" for each in range(10)], partition=number)

    fill_all()
    options = source_options(kafka, topic, group)
    with ExitStack() as running:
        first = Reader(spark, options | {"kafka.client.id": CLIENT}, held=True, processing_time="10000 days")
        running.callback(first.stop)
        eventually(lambda: len(first.read_by_held) == 10 * PARTITIONS, TIMEOUT_S, "the first batch")
        failing_once.fail_next_commit()
        first.may_end.set()
        eventually(failing_once.has_failed, TIMEOUT_S, "the failed commit")
        parsed = parse_options(options)
        second = Query(running.enter_context(closing(Driver(parsed.with_client_id("second")))))
        second.driver.start(second.end)
        took = eventually(lambda: second.advance() and second.owned() == PARTITIONS // 2, MOVE_S, "the move")
        print(f"half of the partitions moved in {took:.2f} s, although a commit failed")
        fill_all()
        eventually(lambda: second.advance() and len(second.places) == 5 * PARTITIONS, TIMEOUT_S, "the new records")
    assert len(first.places) == 10 * PARTITIONS
    assert not set(first.places) & set(second.places)
    assert len(set(second.places)) == len(second.places)
