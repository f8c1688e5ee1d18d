"""Brokers that fail: when a rejection is final, and how backoffs and timeouts grow."""

from __future__ import annotations

import math
import uuid
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source import grace
from spark_group_source.auth.sasl import Sasl
from spark_group_source.clock import JITTER, Backoff, Deadline, LogEvery
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded
from spark_group_source.fetch import cluster_pool
from spark_group_source.grace import GRACE_PERIOD
from spark_group_source.text import Secret
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.failures import AuthFailures, ReconnectBackoff
from spark_group_source.wire.settings import WireOptions
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after, wire_options

AUTHENTICATION_FAILED = 58
REFUSED = AuthenticationFailed("Broker 1 refused.", "Check the password.")
HERE = ("broker", 9092)
OPTIONS = WireOptions(
    (HERE,), "test", connect_timeout=4.0, connect_timeout_max=15.0, reconnect_backoff=0.05, reconnect_backoff_max=0.15
)


def unused() -> Sasl:
    """Credentials that no other test has used."""
    return Sasl("PLAIN", "alice", Secret(f"password {uuid.uuid4()}"))


@pytest.fixture
def options(fake: FakeKafka) -> WireOptions:
    return wire_options(fake, reconnect_backoff=0.001, sasl=unused())


def refuse(fake: FakeKafka, broker: int | None = None, times: int = 10_000) -> None:
    fake.next("SaslAuthenticate", Fault(error=AUTHENTICATION_FAILED, broker=broker), times)


def test_the_rejection_of_settings_that_never_worked_is_final(fake: FakeKafka, cluster: Cluster) -> None:
    refuse(fake)
    with pytest.raises(AuthenticationFailed, match="rejected this client's credentials"):
        cluster.metadata(["t"], after())
    assert fake.request_count("SaslAuthenticate") == len(fake.brokers)


@pytest.mark.parametrize("all_answer", [True, False])
def test_the_chain_of_causes_of_a_rejection_ends(fake: FakeKafka, options: WireOptions, all_answer: bool) -> None:
    """An error that is its own cause ends a query with a ``RecursionError``."""
    refuse(fake)
    if not all_answer:
        fake.brokers[2].stop()
    with closing(Cluster(options)) as cluster, pytest.raises(AuthenticationFailed) as raised:
        cluster.metadata(["t"], after() if all_answer else after(0.5))
    chain: list[BaseException] = []
    cause: BaseException | None = raised.value
    while cause is not None:
        assert not any(cause is earlier for earlier in chain)
        chain.append(cause)
        cause = cause.__cause__


@pytest.mark.parametrize(
    ("api", "error"), [("SaslAuthenticate", AUTHENTICATION_FAILED), ("SaslHandshake", 33)], ids=["login", "mechanism"]
)
def test_a_start_succeeds_if_one_broker_accepts_this_client(
    fake: FakeKafka, options: WireOptions, api: str, error: int
) -> None:
    fake.next(api, Fault(error=error, broker=1), 10_000)
    for servers in (options.bootstrap_servers, options.bootstrap_servers[::-1]):
        with closing(Cluster(replace(options, bootstrap_servers=servers, sasl=unused()))) as cluster:
            assert cluster.metadata(["t"], after()).topics["t"].partitions


def test_a_rejection_is_the_error_if_no_other_broker_answers_and_is_not_repeated_until_then(
    fake: FakeKafka, options: WireOptions
) -> None:
    refuse(fake)
    fake.brokers[2].stop()
    with closing(Cluster(options)) as cluster, pytest.raises(AuthenticationFailed, match="rejected this client's"):
        cluster.metadata(["t"], after(0.5))
    assert fake.request_count("SaslAuthenticate") == 1, "brokers may lock the account"


def test_too_many_connections_are_no_rejection_of_the_credentials(fake: FakeKafka, options: WireOptions) -> None:
    def too_many(response: Any) -> None:
        response.error_message = "[1d2f]: Too many connects"

    fake.next("SaslAuthenticate", Fault(error=AUTHENTICATION_FAILED, edit=too_many), 10_000)
    with closing(Cluster(options)) as cluster, pytest.raises(BrokerUnavailable) as refused:
        cluster.metadata(["t"], after(0.5))
    assert "Too many connects" in str(refused.value)
    assert "password" not in str(refused.value)
    fake.clear_faults()
    with closing(Cluster(options)) as cluster:
        assert cluster.metadata(["t"], after()).topics["t"].partitions


def test_a_broker_that_restarts_before_it_knows_its_users_is_retried(
    fake: FakeKafka, cluster: Cluster, options: WireOptions, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.metadata(["t"], after())
    refuse(fake, times=6)
    cluster.close()
    assert cluster.metadata(["t"], after()).topics["t"].partitions
    assert fake.request_count("SaslAuthenticate") >= 8
    assert caplog.text.count("brokers reject settings that worked before; retrying for up to 300 s") == 1
    refuse(fake, times=2)
    with closing(Cluster(options)) as other:
        assert other.metadata(["t"], after()).topics["t"].partitions, "clusters of one process share that they worked"


def test_a_rejecting_broker_stops_no_other(fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.metadata(["t"], after())
    cluster.connection(1, after())
    refuse(fake, broker=2)
    monkeypatch.setattr(grace, "GRACE_PERIOD", 0.2)
    beyond = after(0.5)
    while not beyond.expired():
        assert cluster.metadata(["t"], after()).topics["t"].partitions
        with pytest.raises(BrokerUnavailable, match="Broker 2 .* rejected this client's credentials"):
            cluster.connection(2, after())


def test_a_task_in_a_new_process_retries_settings_of_the_driver(fake: FakeKafka, options: WireOptions) -> None:
    refuse(fake, times=3)
    with cluster_pool.pooled_cluster(options) as cluster:
        assert cluster.metadata(["t"], after()).topics["t"].partitions
        cluster.close()


def test_a_rejection_is_final_once_no_broker_has_responded_within_the_timeout(hand: Hand) -> None:
    found = AuthFailures(replace(OPTIONS, sasl=unused()), clock=hand)
    found.record_success()
    for _ in range(10):
        found.as_retriable(REFUSED, responded_at=hand.now)
        hand.now += GRACE_PERIOD / 2
    responded_at = hand.now - 1.0
    for _ in range(4):
        found.as_retriable(REFUSED, responded_at)
        hand.now += GRACE_PERIOD / 4
    with pytest.raises(AuthenticationFailed, match=r"Broker 1 refused\. No broker .* 300 s\. Check the password\."):
        found.as_retriable(REFUSED, responded_at)


def test_the_retry_timeout_restarts_after_a_success_and_after_all_brokers_were_down(hand: Hand) -> None:
    found = AuthFailures(replace(OPTIONS, sasl=unused()), clock=hand)
    for _ in range(4):
        found.record_success()
        found.as_retriable(REFUSED, responded_at=None)
        hand.now += GRACE_PERIOD - 1.0
    hand.now += GRACE_PERIOD
    found.as_retriable(REFUSED, responded_at=None)


def test_before_the_first_success_a_rejection_is_retried_for_the_given_time(hand: Hand) -> None:
    found = AuthFailures(replace(OPTIONS, sasl=unused()), 60.0, hand)
    for hand.now in (0.0, 59.0):
        found.as_retriable(REFUSED, responded_at=None)
    hand.now = 60.0
    with pytest.raises(AuthenticationFailed):
        found.as_retriable(REFUSED, responded_at=None)


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_each_backoff_is_twice_the_previous_within_the_jitter(chance: float, factor: float) -> None:
    backoff = Backoff(0.1, 0.5, chance=lambda: chance)
    expected = [0.1, 0.2, 0.4, 0.5, 0.5]
    assert [backoff.next() for _ in expected] == pytest.approx([each * factor for each in expected])
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1 * factor)
    assert max(backoff.next() for _ in range(5000)) == pytest.approx(0.5 * factor), "many failures do not overflow"


def test_each_backoff_varies_within_the_jitter() -> None:
    backoff = Backoff(1.0, 1.0)
    backoffs = [backoff.next() for _ in range(1000)]
    assert len(set(backoffs)) > 900
    assert 1 - JITTER <= min(backoffs) < 1 - JITTER / 2 < 1 + JITTER / 2 < max(backoffs) <= 1 + JITTER


def test_a_repeated_line_is_logged_at_once_and_then_once_in_an_interval(hand: Hand) -> None:
    lines = LogEvery(60.0, hand)
    assert [lines.try_acquire(), lines.try_acquire()] == [True, False]
    hand.now = 60.0
    lines.restart()
    hand.now = 119.9
    assert not lines.try_acquire()
    hand.now = 120.0
    assert lines.try_acquire()


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

    def silent(host: str, port: int, options: WireOptions, deadline: Deadline, broker_id: int | None) -> Connection:
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
