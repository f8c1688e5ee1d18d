"""Which cluster answers: brokers of another one are unavailable, whatever address they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from kafka.protocol.api_key import ApiKey

from spark_group_source.errors import BrokerUnavailable, OtherCluster
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.identity import MAX_WARNED, WARN_AGAIN, ClusterIdentity
from spark_group_source.wire.reachability import SERVERS
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import after, wire_options

FIRST, SECOND = "Kx9aZkQvT7mFfjZ0bB1w5g", "W2mDqvC8S5eR0xYyq1H3Lw"


def test_the_first_id_that_a_broker_reports_is_the_clusters() -> None:
    identity = ClusterIdentity()
    assert identity.id == ""
    for unknown in (None, ""):
        identity.check(unknown, "b:1")
        assert identity.id == ""
    identity.check(FIRST, "b:1")
    for same in (FIRST, None, "", FIRST.swapcase()):
        identity.check(same, "b:2")
    assert identity.id == FIRST
    with pytest.raises(OtherCluster, match=rf"Broker b:2 belongs to cluster '{SECOND}', .* reads cluster '{FIRST}'"):
        identity.check(SECOND, "b:2")
    assert identity.id == FIRST


def test_the_clusters_id_in_the_checkpoint_replaces_what_brokers_have_reported() -> None:
    identity = ClusterIdentity()
    assert not identity.expect("")
    assert not identity.expect(FIRST)
    assert not identity.expect(""), "a checkpoint without an id says nothing"
    assert identity.id == FIRST
    assert identity.expect(SECOND)
    identity.check(SECOND, "b:1")
    with pytest.raises(OtherCluster):
        identity.check(FIRST, "b:1")


def test_each_address_of_another_cluster_is_warned_of_at_once_and_then_rarely(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    identity = ClusterIdentity(FIRST, hand)

    def rejected(broker: str) -> None:
        with pytest.raises(OtherCluster):
            identity.check(SECOND, broker)

    for broker in ("b:1", "b:2", "b:1"):
        rejected(broker)
    hand.now += WARN_AGAIN - 1
    rejected("b:1")
    assert [each.split(" belongs")[0] for each in caplog.messages] == ["broker b:1", "broker b:2"]
    assert FIRST in caplog.messages[0]
    assert SECOND in caplog.messages[0]
    hand.now += 1
    rejected("b:1")
    assert len(caplog.messages) == 3


def test_an_id_and_many_addresses_fill_neither_the_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    identity = ClusterIdentity(FIRST)
    for port in [*range(3 * MAX_WARNED), 3 * MAX_WARNED - 1]:
        with pytest.raises(OtherCluster, match=rf"b:{port} belongs to cluster '\\x1b\[31mx*\\nERROR x+ \.\.\.', and"):
            identity.check("\x1b[31m\nERROR " + "x" * 1000, f"b:{port}")
    assert len(identity._warnings) == MAX_WARNED
    assert len(caplog.messages) == 3 * MAX_WARNED
    assert all(message.isprintable() and len(message) < 400 for message in caplog.messages)


@pytest.fixture
def other() -> Iterator[FakeKafka]:
    """Another cluster with a topic of the same name."""
    with FakeKafka() as running:
        running.create_topic("t", partitions=2)
        yield running


def take_over(other: FakeKafka, fake: FakeKafka, node: int) -> None:
    """The other cluster's broker takes over the address of this one."""
    fake.brokers[node].stop()
    other.brokers[1].stop()
    other.brokers[1].port = fake.brokers[node].port
    other.brokers[1].start()


def assert_asked_for_its_id_only(other: FakeKafka) -> None:
    assert {api for api, _, _ in other.requests} == {"ApiVersions", "ClusterId"}


def test_no_request_reaches_a_server_of_another_cluster_at_the_address_of_a_known_broker(
    fake: FakeKafka, other: FakeKafka, cluster: Cluster
) -> None:
    cluster.metadata(["t"], after())
    assert cluster.identity.id == fake.cluster_id
    assert cluster.find_coordinator("g", after()).id == 1
    take_over(other, fake, 1)
    for purpose in ("", "offsets", "fetch"):
        with pytest.raises(OtherCluster, match=f"Broker 1 .*'{other.cluster_id}'.*'{fake.cluster_id}'"):
            cluster.connection(1, after(), purpose)
        assert not cluster.is_connected(1, purpose)
        assert cluster.connection(2, after(), purpose).is_reusable()
    assert_asked_for_its_id_only(other)
    for _ in range(10):
        assert cluster.metadata(["t"], after()).topics["t"].id == str(fake.ids["t"])
        assert cluster.metadata_from(2, ["t"], after()).topics["t"].id == str(fake.ids["t"])
    assert_asked_for_its_id_only(other)
    assert set(cluster.broker_ids()) == {1, 2}


@pytest.mark.parametrize("first", [True, False])
def test_a_bootstrap_server_of_another_cluster_is_unavailable(fake: FakeKafka, other: FakeKafka, first: bool) -> None:
    servers = [("127.0.0.1", fake.brokers[1].port), ("127.0.0.1", other.brokers[1].port)]
    ordered = tuple(reversed(servers)) if first else tuple(servers)
    options = replace(wire_options(fake), bootstrap_servers=ordered)
    for _ in range(5):
        with closing(Cluster(options, identity=ClusterIdentity(str(fake.cluster_id)))) as cluster:
            assert cluster.metadata(["t"], after()).topics["t"].id == str(fake.ids["t"])
            assert cluster.find_coordinator("g", after()).id == 1
    assert "Metadata" not in {api for api, _, _ in other.requests}


def test_if_only_servers_of_another_cluster_answer_the_error_says_what_to_do(fake: FakeKafka) -> None:
    identity = ClusterIdentity(FIRST)
    with (
        closing(Cluster(wire_options(fake), identity=identity)) as cluster,
        pytest.raises(OtherCluster, match=f"{fake.brokers[1].port} .*'{fake.cluster_id}'.*'{FIRST}'.* new checkpoint"),
    ):
        cluster.metadata(["t"], after(0.3))


@pytest.mark.parametrize("reported", [None, ""])
def test_brokers_that_report_no_cluster_id_stay_usable(fake: FakeKafka, reported: str | None) -> None:
    fake.cluster_id = reported
    for known in ("", FIRST):
        with closing(Cluster(wire_options(fake), identity=ClusterIdentity(known))) as cluster:
            assert cluster.metadata(["t"], after()).topics["t"].partitions
            assert cluster.connection(2, after()).is_reusable()
            assert cluster.identity.id == known


def test_the_oldest_version_of_metadata_shows_the_cluster(fake: FakeKafka) -> None:
    fake.offered = {node: {**_all_versions(), ApiKey.Metadata: (0, 5)} for node in fake.brokers}
    with closing(Cluster(wire_options(fake), identity=ClusterIdentity(FIRST))) as cluster, pytest.raises(OtherCluster):
        cluster.metadata(["t"], after(0.2))


def _all_versions() -> dict[int, tuple[int, int]]:
    return {int(key): (0, known[1]) for key, known in versions.KNOWN.items()} | {int(ApiKey.ApiVersions): (0, 3)}


def test_a_metadata_response_of_another_cluster_is_rejected_on_an_open_connection_too(
    fake: FakeKafka, cluster: Cluster
) -> None:
    """A proxy may route each request by itself."""

    def elsewhere(answer: object) -> None:
        answer.cluster_id = SECOND  # type: ignore[attr-defined]

    cluster.metadata(["t"], after())
    kept = cluster.connection(1, after())
    fake.next("Metadata", Fault(edit=elsewhere), times=2)
    with pytest.raises(OtherCluster):
        cluster.metadata_from(1, ["t"], after())
    assert kept.closed
    with pytest.raises(OtherCluster):
        cluster.request_metadata(cluster.connection(1, after()), ["t"], after())
    assert cluster.metadata_from(1, ["t"], after()).topics["t"].partitions


def test_after_a_broken_check_the_connection_is_closed(fake: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata(["t"], after())
    fake.next("ClusterId", Fault(drop="after"))
    with pytest.raises(BrokerUnavailable, match="Broker|broker 2"):
        cluster.connection(2, after())
    assert not cluster.is_connected(2)


def test_nothing_of_a_forgotten_cluster_is_used(fake: FakeKafka, other: FakeKafka) -> None:
    servers = {each: ("127.0.0.1", each.brokers[1].port) for each in (fake, other)}
    options = replace(wire_options(fake), bootstrap_servers=tuple(servers.values()))
    SERVERS.record_failure(servers[fake])
    with closing(Cluster(options)) as cluster:
        assert cluster.topics(["t"], after())["t"].id == str(other.ids["t"])
        cluster.connection(1, after())
        assert cluster.identity.expect(str(fake.cluster_id))
        cluster.forget()
        before = len(other.requests)
        assert cluster.broker_ids() == []
        assert cluster.find_coordinator("g", after()).port == fake.brokers[1].port
        assert cluster.topics(["t"], after())["t"].id == str(fake.ids["t"])
    assert {api for api, _, _ in other.requests[before:]} <= {"ApiVersions", "ClusterId"}
