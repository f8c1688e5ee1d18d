"""A broker that failed is tried again after a backoff, which doubles and varies."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.reconnect_backoff import ReconnectBackoff
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after, wire_options

HERE = ("broker", 9092)
OPTIONS = WireOptions(
    (HERE,), "test", connect_timeout=4.0, connect_timeout_max=15.0, reconnect_backoff=0.05, reconnect_backoff_max=0.15
)


def test_the_reconnect_backoff_doubles_up_to_its_maximum_and_restarts_after_a_success(hand: Hand) -> None:
    backoff = ReconnectBackoff(OPTIONS, hand, chance=lambda: 0.5)
    for pause in (0.05, 0.1, 0.15, 0.15):
        backoff.check(HERE)
        backoff.record_failure(HERE, BrokerUnavailable("It refused.", "Start it."))
        hand.now += pause * 0.99
        with pytest.raises(BrokerUnavailable, match=r"It refused\. Start it\."):
            backoff.check(HERE)
        hand.now += pause * 0.02
    backoff.record_success(HERE)
    backoff.record_failure(HERE, BrokerUnavailable("again"))
    hand.now += 0.051
    backoff.check(HERE)


def test_the_connect_timeout_doubles_with_each_failure_up_to_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def silent(host: str, port: int, options: WireOptions, deadline: Deadline, *_: object, **__: object) -> Connection:
        given.append(math.ceil(deadline.remaining()))
        raise DeadlineExceeded("silence")

    monkeypatch.setattr(Connection, "open", silent)
    connections = Cluster(replace(OPTIONS, reconnect_backoff=1e-9, reconnect_backoff_max=1e-9))._connections
    for _ in range(2000):
        with pytest.raises(DeadlineExceeded):
            connections.to_bootstrap(*HERE, after())
    with pytest.raises(DeadlineExceeded):
        connections.to_bootstrap("other", 9092, after())
    assert given == [4, 8] + [15] * 1998 + [4]


def test_a_broker_that_refused_a_connection_is_skipped_during_its_backoff(fake: FakeKafka) -> None:
    with closing(Cluster(wire_options(fake, reconnect_backoff=LONG, reconnect_backoff_max=LONG))) as cluster:
        cluster.metadata(None, after())
        cluster.close()
        fake.brokers[1].stop()
        with pytest.raises(BrokerUnavailable, match="refused"):
            cluster.connection(1, after())
        fake.brokers[1].start()
        with pytest.raises(BrokerUnavailable, match="refused"):
            cluster.connection(1, after())
        for _ in range(4):
            assert cluster.metadata(["t"], after()).topics["t"].partitions


def test_clients_that_failed_at_the_same_moment_reconnect_at_different_moments(hand: Hand) -> None:
    again = set()
    for _ in range(20):
        backoff = ReconnectBackoff(OPTIONS, hand)
        backoff.record_failure(HERE, BrokerUnavailable("It refused."))
        again.add(backoff._failures[HERE].retry_at)
    assert 0.04 <= min(again) < max(again) <= 0.06
