"""The backoff and the connect timeout of an unreachable broker grow with each failure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.failures import ReconnectBackoff
from spark_group_source.wire.settings import WireOptions
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand

LONG = 90.0
HERE = ("broker", 9092)
OPTIONS = WireOptions(
    (HERE,), "test", connect_timeout=4.0, connect_timeout_max=15.0, reconnect_backoff=0.05, reconnect_backoff_max=0.15
)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running


def test_the_reconnect_backoff_doubles_up_to_its_maximum_and_restarts_after_a_success() -> None:
    clock = Hand()
    backoff = ReconnectBackoff(OPTIONS, clock, chance=lambda: 0.5)
    for pause in (0.05, 0.1, 0.15, 0.15):
        backoff.check(HERE)
        backoff.record_failure(HERE, BrokerUnavailable("It refused.", "Start it."))
        clock.now += pause * 0.99
        with pytest.raises(BrokerUnavailable, match=r"It refused\. Start it\."):
            backoff.check(HERE)
        clock.now += pause * 0.02
    backoff.record_success(HERE)
    backoff.record_failure(HERE, BrokerUnavailable("again"))
    clock.now += 0.051
    backoff.check(HERE)


def test_clients_that_failed_at_the_same_moment_reconnect_at_different_moments() -> None:
    clock, again = Hand(), set()
    for _ in range(20):
        backoff = ReconnectBackoff(OPTIONS, clock)
        backoff.record_failure(HERE, BrokerUnavailable("It refused."))
        again.add(backoff._failures[HERE].retry_at)
    assert len(again) > 1
    assert all(0.04 <= each <= 0.06 for each in again)


def test_the_connect_timeout_doubles_with_each_failure_up_to_its_maximum() -> None:
    backoff = ReconnectBackoff(OPTIONS, Hand())
    found = []
    for _ in range(3):
        found.append(backoff.connect_timeout(HERE))
        backoff.record_failure(HERE, BrokerUnavailable("silence"))
    assert found == [4.0, 8.0, 15.0]
    assert backoff.connect_timeout(("other", 9092)) == 4.0
    for _ in range(2000):
        backoff.record_failure(HERE, BrokerUnavailable("silence"))
    assert backoff.connect_timeout(HERE) == 15.0


def test_each_connection_has_the_connect_timeout_of_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def silent(host: str, port: int, options: WireOptions, deadline: Deadline, broker_id: int | None) -> Connection:
        given.append(math.ceil(deadline.remaining()))
        raise DeadlineExceeded("silence")

    monkeypatch.setattr(Connection, "open", silent)
    cluster = Cluster(replace(OPTIONS, reconnect_backoff=1e-9, reconnect_backoff_max=1e-9))
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            cluster._connections.to_bootstrap(*HERE, Deadline.after(LONG))
    assert given == [4, 8, 15]


def test_a_broker_that_refused_a_connection_is_skipped_during_its_backoff(fake: FakeKafka) -> None:
    brokers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    cluster = Cluster(WireOptions(brokers, "test", reconnect_backoff=LONG, reconnect_backoff_max=LONG))
    try:
        cluster.metadata(None, Deadline.after(LONG))
        cluster.close()
        fake.brokers[1].stop()
        with pytest.raises(BrokerUnavailable, match="refused"):
            cluster.connection(1, Deadline.after(LONG))
        fake.brokers[1].start()
        with pytest.raises(BrokerUnavailable, match="refused"):
            cluster.connection(1, Deadline.after(LONG))
        for _ in range(4):
            assert cluster.metadata(["t"], Deadline.after(LONG)).topics["t"].partitions
    finally:
        cluster.close()


def test_a_connection_that_was_idle_for_too_long_is_not_reused(fake: FakeKafka) -> None:
    cluster = Cluster(WireOptions((("127.0.0.1", fake.brokers[1].port),), "test", max_idle=100.0))
    try:
        cluster.metadata(None, Deadline.after(LONG))
        first = cluster.connection(2, Deadline.after(LONG))
        assert cluster.connection(2, Deadline.after(LONG)) is first
        first.used_at -= 99.0 + 1.1
        second = cluster.connection(2, Deadline.after(LONG))
        assert second is not first
        assert first.closed
    finally:
        cluster.close()
