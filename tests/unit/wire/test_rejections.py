"""Brokers that reject this client: which rejection is final, and for how long others are retried."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source import grace
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable
from spark_group_source.fetch import cluster_pool
from spark_group_source.grace import GRACE_PERIOD
from spark_group_source.text import Secret
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.rejections import AuthFailures
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import after, wire_options

AUTHENTICATION_FAILED = 58
REFUSED = AuthenticationFailed("Broker 1 refused.", "Check the password.")
OPTIONS = WireOptions((("broker", 9092),), "test")


def unused() -> SaslSignIn:
    """Credentials that no other test has used."""
    return SaslSignIn(Sasl("PLAIN", "alice", Secret(f"password {uuid.uuid4()}")))


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
