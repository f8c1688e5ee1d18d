"""A rejected authentication: final if the settings never worked, otherwise retried for a while."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable
from spark_group_source.fetch import reader
from spark_group_source.text import Secret
from spark_group_source.wire import failures as rejections
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.failures import RETRY_TIMEOUT, AuthFailures
from spark_group_source.wire.settings import Sasl, WireOptions
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand

LONG = 90.0
AUTHENTICATION_FAILED = 58
REFUSED = AuthenticationFailed("Broker 1 refused.", "Check the password.")
_numbers = itertools.count()


def options(fake: FakeKafka | None = None) -> WireOptions:
    """Settings that no other test has used."""
    brokers = fake.brokers.values() if fake else ()
    servers = tuple(("127.0.0.1", each.port) for each in brokers)
    login = Sasl("PLAIN", "alice", Secret(f"password {next(_numbers)}"))
    return WireOptions(servers, "test", retry_backoff=0.01, retry_backoff_max=0.05, reconnect_backoff=0.001, sasl=login)


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    made = Cluster(options(fake))
    yield made
    made.close()


def after(seconds: float = LONG) -> Deadline:
    return Deadline.after(seconds)


def refuse(fake: FakeKafka, broker: int | None = None, times: int = 10_000) -> None:
    fake.next("SaslAuthenticate", Fault(error=AUTHENTICATION_FAILED, broker=broker), times)


def test_the_rejection_of_settings_that_never_worked_is_final(fake: FakeKafka, cluster: Cluster) -> None:
    refuse(fake, times=1)
    with pytest.raises(AuthenticationFailed, match="rejected this client's credentials"):
        cluster.metadata(["t"], after())
    assert fake.request_count("SaslAuthenticate") == 1


def test_a_broker_that_restarts_before_it_knows_its_users_is_retried(
    fake: FakeKafka, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.metadata(["t"], after())
    refuse(fake, times=6)
    cluster.close()
    assert cluster.metadata(["t"], after()).topics["t"].partitions
    assert fake.request_count("SaslAuthenticate") >= 8
    assert caplog.text.count("brokers reject settings that worked before; retrying for up to 300 s") == 1


def test_clusters_of_one_process_share_that_the_settings_worked(fake: FakeKafka) -> None:
    own = options(fake)
    first, second = Cluster(own), Cluster(own)
    first.metadata(["t"], after())
    refuse(fake, times=2)
    assert second.metadata(["t"], after()).topics["t"].partitions
    for each in (first, second):
        each.close()


def test_a_rejection_that_outlasts_the_timeout_is_final(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.metadata(["t"], after())
    refuse(fake)
    cluster.close()
    monkeypatch.setattr(rejections, "RETRY_TIMEOUT", 0.2)
    with pytest.raises(
        AuthenticationFailed, match=r"rejected this client's credentials.*No broker has accepted this client for 0 s"
    ):
        cluster.metadata(["t"], after())


def test_one_broker_that_always_rejects_does_not_stop_the_others(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.metadata(["t"], after())
    cluster.connection(1, after())
    refuse(fake, broker=2)
    monkeypatch.setattr(rejections, "RETRY_TIMEOUT", 0.2)
    beyond = after(0.5)
    while not beyond.expired():
        assert cluster.metadata(["t"], after()).topics["t"].partitions
        with pytest.raises(BrokerUnavailable, match="Broker 2 .* rejected this client's credentials"):
            cluster.connection(2, after())


def test_a_task_in_a_new_process_retries_settings_that_worked_on_the_driver(fake: FakeKafka) -> None:
    refuse(fake, times=3)
    with reader.pooled_cluster(options(fake)) as cluster:
        assert cluster.metadata(["t"], after()).topics["t"].partitions
        cluster.close()


def test_a_rejection_is_final_once_no_broker_has_responded_within_the_timeout() -> None:
    clock = Hand()
    found = AuthFailures(options(), clock=clock)
    found.record_success()
    for _ in range(10):
        found.as_retriable(REFUSED, responded_at=clock.now)
        clock.now += RETRY_TIMEOUT / 2
    responded_at = clock.now - 1.0
    for _ in range(4):
        found.as_retriable(REFUSED, responded_at)
        clock.now += RETRY_TIMEOUT / 4
    with pytest.raises(AuthenticationFailed, match=r"Broker 1 refused\. No broker .* 300 s\. Check the password\."):
        found.as_retriable(REFUSED, responded_at)


def test_a_success_restarts_the_retry_timeout() -> None:
    clock = Hand()
    found = AuthFailures(options(), clock=clock)
    found.record_success()
    for _ in range(4):
        found.as_retriable(REFUSED, responded_at=None)
        clock.now += RETRY_TIMEOUT - 1.0
        found.record_success()


def test_the_retry_timeout_restarts_after_all_brokers_were_down() -> None:
    clock = Hand()
    found = AuthFailures(options(), clock=clock)
    found.record_success()
    found.as_retriable(REFUSED, responded_at=None)
    clock.now += RETRY_TIMEOUT * 2
    found.as_retriable(REFUSED, responded_at=None)


def test_before_the_first_success_a_rejection_is_retried_for_the_given_time() -> None:
    clock = Hand()
    found = AuthFailures(options(), 60.0, clock)
    found.as_retriable(REFUSED, responded_at=None)
    clock.now += 59.0
    found.as_retriable(REFUSED, responded_at=None)
    clock.now += 1.0
    with pytest.raises(AuthenticationFailed):
        found.as_retriable(REFUSED, responded_at=None)
