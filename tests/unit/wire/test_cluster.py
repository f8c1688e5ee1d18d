"""The cluster as one thread sees it: requests to any broker, connections that are reopened, and throttling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol import admin, consumer, metadata
from kafka.protocol.api_key import ApiKey

from spark_group_source.clock import WARN_EVERY, Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupError
from spark_group_source.fetch import messages
from spark_group_source.fetch.messages import FetchPartition
from spark_group_source.group.consumer import messages as group_messages
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import KEEP_TOPICS, Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.reachability import EAGER, SERVERS
from spark_group_source.wire.throttle import Throttle
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka, Fault, releases
from tests.fake.handlers import DESCRIBE, TOPIC_DENIED
from tests.unit.hand_clock import Hand
from tests.unit.wire.messages import heartbeat
from tests.unit.wire_options import LONG, after, wire_options
from tests.waiting import eventually

BEYOND = 5000.0


def test_topics_are_requested_once_until_they_are_invalidated_or_wanted_fresh(
    fake: FakeKafka, cluster: Cluster
) -> None:
    assert cluster.topics(["t"], after())["t"].partitions == {0: 1, 1: 2}
    assert cluster.topics(["t"], after())["t"].id == str(fake.ids["t"])
    assert fake.request_count("Metadata") == 1
    cluster.invalidate_topics(["t", "unknown"])
    cluster.topics(["t"], after())
    cluster.topics(["t"], after(), fresh=True)
    assert fake.request_count("Metadata") == 3


def test_an_error_in_the_metadata_is_not_kept_as_an_answer(fake: FakeKafka, cluster: Cluster) -> None:
    fake.denied["t"] = DESCRIBE
    assert cluster.topics(["t", "later"], after())["t"].error == TOPIC_DENIED
    del fake.denied["t"]
    fake.create_topic("later")
    topics = cluster.topics(["t", "later"], after())
    assert topics["t"].partitions == {0: 1, 1: 2}
    assert topics["later"].partitions.keys() == {0}


def test_a_connection_knows_the_versions_that_its_broker_supports(fake: FakeKafka, cluster: Cluster) -> None:
    assert not cluster.supports(1, ApiKey.Metadata, 12)
    cluster.metadata(["t"], after())
    cluster.connection(1, after(), "offsets")
    assert cluster.supports(1, ApiKey.Metadata, 12, "offsets")
    assert not cluster.supports(1, ApiKey.Metadata, 99, "offsets")
    assert not cluster.supports(1, 12345, 0, "offsets")


def test_no_cause_of_an_unreachable_bootstrap_server_is_its_own_cause() -> None:
    options = WireOptions(bootstrap_servers=(("127.0.0.1", 1),))
    with closing(Cluster(options)) as cluster, pytest.raises(BrokerUnavailable) as raised:
        cluster.topics({"topic"}, after(0.5))
    causes: list[BaseException] = []
    cause: BaseException | None = raised.value
    while cause is not None:
        assert cause not in causes
        causes.append(cause)
        cause = cause.__cause__


def test_topics_without_requests_are_not_kept(
    fake: FakeKafka, cluster: Cluster, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_group_source.wire.cluster.monotonic", hand)
    for name in ("used", "over", "never"):
        fake.create_topic(name)
    cluster.metadata(["t", "used", "over"], after())
    for _ in range(3):
        hand.now += KEEP_TOPICS * 0.6
        cluster.topics(["used"], after())
        assert "never" in cluster.metadata(None, after()).topics
    assert set(cluster._topics) == set(cluster._requested_at) == {"used"}
    assert set(cluster.topics(["used", "over"], after())) == {"used", "over"}


def test_metadata_shows_missing_topics_and_partitions_without_a_leader(fake: FakeKafka, cluster: Cluster) -> None:
    fake.logs["t"][1].leader = None
    assert cluster.metadata(None, after()).topics["t"].partitions == {0: 1, 1: None}
    assert cluster.metadata(["nowhere"], after()).topics["nowhere"].error == 3
    assert not fake.requests[-1][2].allow_auto_topic_creation


@pytest.mark.parametrize("hung", [1, 2])
def test_a_silent_broker_leaves_time_for_another_broker(fake: FakeKafka, cluster: Cluster, hung: int) -> None:
    cluster.metadata(None, after())
    for broker in (1, 2):
        cluster.connection(broker, after())
    fake.brokers[hung].hung = True
    for _ in range(4):
        assert cluster.metadata(["t"], after(2.0)).topics["t"].partitions


@pytest.mark.parametrize(("silent", "seconds", "delay"), [(12, 4.0, 0.0), (12, 4.0, 0.4), (3, 1.0, 0.0), (1, 1.0, 0.0)])
def test_no_number_of_silent_brokers_keeps_a_lookup_from_the_bootstrap_servers(
    silent: int, seconds: float, delay: float
) -> None:
    with FakeKafka(brokers=silent + 1) as fake:
        bootstrap = fake.brokers[silent + 1]
        with closing(Cluster(WireOptions((("127.0.0.1", bootstrap.port),), "test"))) as cluster:
            fake.fenced = {bootstrap.node}
            assert len(cluster.metadata(None, after()).brokers) == silent
            for broker in range(1, silent + 1):
                cluster.connection(broker, after())
                fake.brokers[broker].hung = True
            fake.fenced = set(range(1, silent + 1))
            cluster._connections._bootstrap.close()  # type: ignore[union-attr]
            for api in ("ApiVersions", "ClusterId", "Metadata"):
                fake.next(api, Fault(delay=delay, broker=bootstrap.node), times=9)
            assert set(cluster.metadata(None, after(seconds)).brokers) == {bootstrap.node}


def test_no_number_of_silent_brokers_keeps_a_lookup_from_a_bootstrap_server_that_is_a_broker_itself() -> None:
    with FakeKafka(brokers=13) as fake:
        for bootstrap in (1, 7, 13):
            SERVERS.clear()
            named = (("127.0.0.1", fake.brokers[bootstrap].port),)
            with closing(Cluster(WireOptions(named, "test"))) as cluster:
                assert len(cluster.metadata(None, after()).brokers) == 13
                cluster._connections.close()
                for each in fake.brokers.values():
                    each.hung = each.node != bootstrap
                before = len(fake.requests)
                assert cluster.metadata(None, after(4.0)).brokers
                assert fake.requests[before:]
                for each in fake.brokers.values():
                    each.hung = False


def test_connected_brokers_are_asked_before_brokers_whose_connection_failed(fake: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata(None, after())
    cluster.connection(2, after())
    cluster.connection(1, after()).close()
    before = len(fake.requests)
    for _ in range(10):
        cluster.metadata(["t"], after())
    assert {node for _, node, _ in fake.requests[before:]} == {2}


def knows_nothing(answer: Any) -> None:
    """Makes the response that of a broker that has just started."""
    answer.brokers = []
    for each in answer.topics:
        each.error_code, each.partitions = 3, []


def test_metadata_without_brokers_is_retried_until_the_deadline(fake: FakeKafka, cluster: Cluster) -> None:
    fake.next("Metadata", Fault(edit=knows_nothing), times=3)
    assert cluster.metadata(["t"], after()).topics["t"].partitions
    fake.next("Metadata", Fault(edit=knows_nothing, broker=1), times=1000)
    for _ in range(6):
        found = cluster.metadata(["t"], after())
        assert set(found.brokers) == {1, 2}
        assert found.topics["t"].partitions == {0: 1, 1: 2}
    fake.next("Metadata", Fault(edit=knows_nothing), times=10_000)
    with pytest.raises(BrokerUnavailable, match="no brokers"):
        cluster.metadata(["t"], after(0.2))


def test_without_any_broker_one_error_names_all_in_time(fake: FakeKafka, cluster: Cluster) -> None:
    ports = [each.port for each in fake.brokers.values()]
    for broker in fake.brokers.values():
        broker.stop()
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=f"(?=.*{ports[0]})(?=.*{ports[1]}).*kafka.bootstrap.servers"):
        cluster.metadata(["t"], after(0.5))
    assert time.monotonic() - began < LONG


def test_an_open_connection_is_reused_and_a_broken_connection_is_not(fake: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata(None, after())
    kept = cluster.connection(1, after())
    assert cluster.connection(1, after()) is kept
    assert cluster.connection(1, after(), "fetch") is not kept
    fake.brokers[1].disconnect()
    eventually(lambda: not kept.is_reusable())
    assert cluster.connection(1, after()).is_reusable()
    assert kept.closed


def served(fake: FakeKafka) -> int:
    """How many connections the brokers have accepted."""
    return fake.request_count("ApiVersions")


def one_bootstrap_server(fake: FakeKafka, **more: Any) -> WireOptions:
    return replace(wire_options(fake, **more), bootstrap_servers=(("127.0.0.1", fake.brokers[1].port),))


@pytest.mark.parametrize("lookup", ["metadata", "coordinator"])
def test_a_bootstrap_connection_is_that_of_the_broker_that_advertises_the_address(fake: FakeKafka, lookup: str) -> None:
    with closing(Cluster(one_bootstrap_server(fake))) as cluster:
        if lookup == "metadata":
            cluster.metadata(["t"], after())
        else:
            assert cluster.find_coordinator("g", after()).id == 1
        kept = cluster.connection(1, after())
        assert str(kept) == f"1 (127.0.0.1:{fake.brokers[1].port})"
        cluster.metadata_from(1, ["t"], after())
        cluster.metadata(["t"], after())
        assert served(fake) == 1
        cluster.connection(1, after(), "fetch")
        cluster.connection(2, after())
        assert served(fake) == 3


def test_the_bootstrap_server_is_tried_again_when_its_broker_is_in_no_metadata(fake: FakeKafka) -> None:
    with closing(Cluster(one_bootstrap_server(fake))) as cluster:
        cluster.metadata(None, after())
        fake.fenced = {1}
        assert set(cluster.metadata(None, after()).brokers) == {2}
        fake.brokers[2].hung = True
        assert set(cluster.metadata(None, after(4.0)).brokers) == {2}, "as the bootstrap server says"


def advertised(*ports: int) -> Callable[[Any], None]:
    """Makes brokers advertise these ports, in the order of their ids."""

    def edit(answer: Any) -> None:
        for each, port in zip(answer.brokers, ports, strict=True):
            each.port = port

    return edit


def test_an_address_that_several_brokers_advertise_is_no_brokers_own(fake: FakeKafka) -> None:
    """A load balancer may connect each connection to any of them."""
    port = fake.brokers[1].port
    for api in ("ClusterId", "Metadata"):
        fake.next(api, Fault(edit=advertised(port, port)), times=100)
    for lookup in ("metadata", "coordinator"):
        before = served(fake)
        with closing(Cluster(one_bootstrap_server(fake))) as cluster:
            if lookup == "metadata":
                cluster.metadata(["t"], after())
            else:
                cluster.find_coordinator("g", after())
            bootstrap = cluster._connections._bootstrap
            assert bootstrap is not None
            assert cluster.connection(1, after()) is not bootstrap
        assert served(fake) == before + 2


def test_the_address_of_a_load_balancer_is_no_brokers(fake: FakeKafka) -> None:
    options = replace(one_bootstrap_server(fake), bootstrap_servers=(("localhost", fake.brokers[1].port),))
    with closing(Cluster(options)) as cluster:
        cluster.metadata(["t"], after())
        assert cluster.connection(1, after()) is not cluster._connections._bootstrap
        assert served(fake) == 2


def test_the_broker_at_the_other_end_says_who_advertises_its_address(fake: FakeKafka) -> None:
    """Another broker's metadata may name a broker that has the address by now, or had it before."""
    first, second = fake.brokers[1].port, fake.brokers[2].port
    fake.next("ClusterId", Fault(edit=advertised(second, first)))
    with closing(Cluster(one_bootstrap_server(fake))) as cluster:
        cluster.metadata(["t"], after())
        bootstrap = cluster._connections._bootstrap
        assert bootstrap is not None
        assert cluster.connection(1, after()) is not bootstrap


def test_a_bootstrap_connection_replaces_no_open_connection_of_its_broker(fake: FakeKafka) -> None:
    with closing(Cluster(one_bootstrap_server(fake))) as cluster:
        cluster.metadata(None, after())
        kept = cluster.connection(1, after())
        bootstrap = cluster._connections.to_bootstrap("127.0.0.1", fake.brokers[1].port, after())
        cluster.metadata(None, after())
        assert cluster.connection(1, after()) is kept
        kept.close()
        cluster.metadata_from(2, None, after())
        cluster._connections.adopt_bootstrap(cluster._brokers.values())
        assert cluster.connection(1, after()) is bootstrap


def test_connections_to_a_retired_broker_are_closed_after_it_ended_them(fake: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata(None, after())
    kept = [cluster.connection(2, after(), purpose) for purpose in ("", "other")]
    retired = fake.brokers.pop(2)
    cluster.metadata(None, after())
    assert not any(each.closed for each in kept), "their holders may still use them"
    retired.stop()
    eventually(lambda: cluster.metadata(None, after()) and all(each.closed for each in kept))
    assert {number for number, _ in cluster._connections._by_purpose} <= {1}
    retired.join()


def test_a_connection_that_was_idle_for_too_long_is_not_reused(fake: FakeKafka) -> None:
    with closing(Cluster(wire_options(fake, max_idle=100.0))) as cluster:
        cluster.metadata(None, after())
        first = cluster.connection(2, after())
        assert cluster.connection(2, after()) is first
        first.used_at -= 99.0 + 1.1
        assert cluster.connection(2, after()) is not first
        assert first.closed


def test_the_lookup_of_a_coordinator_is_retried_until_it_is_available(fake: FakeKafka, cluster: Cluster) -> None:
    for error_code in (7, 14, 15, 16):
        fake.next("FindCoordinator", Fault(error=error_code), times=3)
        assert cluster.find_coordinator("g", after()).id == 1


def test_the_lookup_of_a_coordinator_ends_at_the_deadline_or_at_once_without_permission(
    fake: FakeKafka, cluster: Cluster
) -> None:
    fake.next("FindCoordinator", Fault(error=30))
    with pytest.raises(GroupError, match="READ on the group"):
        cluster.find_coordinator("g", after())
    fake.next("FindCoordinator", Fault(error=15), times=1000)
    with pytest.raises(DeadlineExceeded, match="'g'.*15"):
        cluster.find_coordinator("g", after(0.5))


def throttled(fake: FakeKafka, cluster: Cluster, seconds: float) -> Connection:
    """A connection on which a broker has throttled the client."""
    cluster.metadata(None, after())
    connection = cluster.connection(1, after(), "test")
    fake.next("Heartbeat", Fault(throttle=seconds))
    connection.call(heartbeat(), after())
    return connection


def test_a_request_waits_until_the_broker_reads_again(fake: FakeKafka, cluster: Cluster) -> None:
    connection = throttled(fake, cluster, 0.3)
    assert 0 < connection.throttle_remaining <= 0.3
    assert connection.call(heartbeat(), after()).error_code == 25
    assert connection.throttle_remaining == 0
    assert fake.brokers[1].sent_while_muted == 0


def test_the_throttle_times_of_the_first_and_of_an_undecoded_response_count(fake: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata(None, after())
    EAGER.record_failure(("127.0.0.1", fake.brokers[1].port))
    fake.next("ApiVersions", Fault(throttle=0.3))
    assert cluster.connection(1, after(), "new").is_reusable()
    assert fake.brokers[1].sent_while_muted == 0
    connection = cluster.connection(1, after(), "test")
    fake.next("Fetch", Fault(throttle=BEYOND))
    wanted = [FetchPartition(TopicPartition("t", 0), str(fake.ids["t"]), 0, 1000)]
    connection.send(messages.build_request(wanted, max_wait=0.0, max_bytes=1000, read_committed=False), after())
    connection.receive_raw(after())
    assert BEYOND - LONG < connection.throttle_remaining <= BEYOND


def is_asked_early(fake: FakeKafka, cluster: Cluster, purpose: str) -> bool:
    """Whether a new connection asks for the cluster before the broker has named its versions."""
    before = fake.brokers[1].sent_while_muted
    fake.next("ApiVersions", Fault(throttle=0.2))
    assert cluster.connection(1, after(), purpose).is_reusable()
    return fake.brokers[1].sent_while_muted > before


def test_the_versions_and_the_cluster_cost_one_round_trip(fake: FakeKafka, cluster: Cluster) -> None:
    cluster.metadata(None, after())
    assert is_asked_early(fake, cluster, "new")


def test_a_server_that_expects_no_early_request_gets_none_after_the_first_failure(
    fake: FakeKafka, cluster: Cluster
) -> None:
    cluster.metadata(None, after())
    fake.next("ClusterId", Fault(drop="before"))
    with pytest.raises(BrokerUnavailable):
        cluster.connection(1, after(), "first")
    time.sleep(cluster.options.reconnect_backoff_max)
    assert not is_asked_early(fake, cluster, "second")


@pytest.mark.parametrize("name", releases.ALL)
def test_brokers_of_each_release_answer_an_early_question_for_the_cluster(fake: FakeKafka, name: str) -> None:
    fake.offered = dict.fromkeys(fake.brokers, releases.ALL[name])
    with closing(Cluster(wire_options(fake))) as cluster:
        cluster.metadata(None, after())
        assert cluster.connection(2, after()).advertised_by == 2
        assert cluster.identity.id == fake.cluster_id
    assert all(EAGER.failures(("127.0.0.1", each.port)) == 0 for each in fake.brokers.values())


def test_responses_begin_with_the_throttle_time() -> None:
    modules = (consumer, metadata, admin, group_messages)
    for api, version in [
        *((key, known[1]) for key, known in versions.KNOWN.items() if "Sasl" not in key.name),
        *versions.CONSUMER_PROTOCOL.items(),
    ]:
        name = f"{api.name}Request"
        request = getattr(next(each for each in modules if hasattr(each, name)), name)(version=version)
        request.with_header(correlation_id=1, client_id="c")
        first = next(iter(request.header.get_response_class()._struct.fields))
        assert first == "throttle_time_ms", (name, version)


def test_a_throttle_beyond_the_deadline_fails_and_keeps_the_connection(fake: FakeKafka, cluster: Cluster) -> None:
    connection = throttled(fake, cluster, BEYOND)
    before = len(fake.requests)
    with pytest.raises(DeadlineExceeded, match=r"HeartbeatRequest was not sent: broker 1 .* throttles .* quota"):
        connection.call(heartbeat(), after())
    assert connection.is_reusable()
    assert cluster.connection(1, after(), "test") is connection
    assert len(fake.requests) == before
    assert cluster.throttle_remaining(1, "test") > BEYOND - LONG
    for broker, purpose in ((1, "fetch"), (1, ""), (9, "test")):
        assert cluster.throttle_remaining(broker, purpose) == 0
    connection.close()
    assert cluster.throttle_remaining(1, "test") == 0


def test_a_wakeup_ends_only_the_wait_for_a_throttle(fake: FakeKafka, cluster: Cluster, wakeup: WakeupPipe) -> None:
    connection = throttled(fake, cluster, LONG)
    threading.Timer(0.05, wakeup.set).start()
    with pytest.raises(Interrupted):
        connection.send(heartbeat(), Deadline.after(LONG * 2, wakeup=wakeup))
    assert connection.is_reusable()


def test_the_longest_throttle_counts_and_log_lines_are_rare(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    found = Throttle("1 (b:1)", hand)
    found.record(0.0)
    assert not caplog.records
    found.record(20.0)
    found.record(5.0)
    assert found.remaining() == 20.0
    hand.now += WARN_EVERY
    assert found.remaining() == 0.0
    found.record(1.5)
    says = "quota exceeded: broker 1 (b:1) throttles this client for {} s"
    assert caplog.messages == [says.format("20.0"), says.format("1.5")]
