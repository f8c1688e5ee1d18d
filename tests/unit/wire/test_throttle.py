"""A broker that throttles this client gets no request that it would not read, and the connection stays usable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol import admin, consumer, metadata
from kafka.protocol.consumer import HeartbeatRequest

from spark_group_source.clock import WARN_EVERY, Deadline
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.fetch import messages
from spark_group_source.fetch.messages import FetchPartition
from spark_group_source.group import consumer_messages
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection, Throttle
from spark_group_source.wire.settings import WireOptions
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand

LONG, SHORT = 90.0, 0.1
BEYOND = 5000.0


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    made = Cluster(WireOptions((("127.0.0.1", fake.brokers[1].port),), "test", retry_backoff=0.01))
    made.metadata(None, after())
    yield made
    made.close()


@pytest.fixture
def connection(cluster: Cluster) -> Connection:
    return cluster.connection(1, after(), "test")


def after(seconds: float = LONG) -> Deadline:
    return Deadline.after(seconds)


def heartbeat() -> Any:
    return HeartbeatRequest(
        version=versions.HEARTBEAT, group_id="g", generation_id=1, member_id="m", group_instance_id=None
    )


def throttled(fake: FakeKafka, connection: Connection, seconds: float) -> None:
    """Lets the broker throttle the client in a response on this connection."""
    fake.next("Heartbeat", Fault(throttle=seconds))
    connection.call(heartbeat(), after())


def test_a_request_waits_until_the_broker_reads_again(fake: FakeKafka, connection: Connection) -> None:
    throttled(fake, connection, 0.3)
    assert 0 < connection.throttle_remaining <= 0.3
    assert connection.call(heartbeat(), after()).error_code == 25
    assert connection.throttle_remaining == 0
    assert fake.brokers[1].sent_while_muted == 0


def test_the_throttle_time_of_an_undecoded_response_counts(fake: FakeKafka, connection: Connection) -> None:
    fake.next("Fetch", Fault(throttle=BEYOND))
    wanted = [FetchPartition(str(fake.ids["t"]), 0, 0, 1000)]
    connection.send(messages.build_request(wanted, max_wait=0.0, max_bytes=1000, read_committed=False), after())
    connection.receive_raw(after())
    assert BEYOND - LONG < connection.throttle_remaining <= BEYOND


def test_the_throttle_time_of_the_first_response_counts(fake: FakeKafka, cluster: Cluster) -> None:
    fake.next("ApiVersions", Fault(throttle=BEYOND))
    assert cluster.connection(1, after(), "new").throttle_remaining > BEYOND - LONG


@pytest.mark.parametrize(
    ("api", "version"),
    [*versions.PINNED.items(), *versions.CONSUMER_PROTOCOL.items()],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_responses_begin_with_the_throttle_time(api: Any, version: int) -> None:
    name = f"{api.name}Request"
    request = getattr(next(m for m in (consumer, metadata, admin, consumer_messages) if hasattr(m, name)), name)(
        version=version
    )
    request.with_header(correlation_id=1, client_id="c")
    assert next(iter(request.header.get_response_class()._struct.fields)) == "throttle_time_ms"


def test_a_throttle_beyond_the_deadline_fails_at_once_and_keeps_the_connection(
    fake: FakeKafka, cluster: Cluster, connection: Connection
) -> None:
    throttled(fake, connection, BEYOND)
    before = len(fake.requests)
    with pytest.raises(DeadlineExceeded, match=r"HeartbeatRequest was not sent: broker 1 .* throttles .* quota"):
        connection.call(heartbeat(), after())
    assert connection.is_reusable()
    assert cluster.connection(1, after(), "test") is connection
    assert len(fake.requests) == before


def test_a_wakeup_ends_the_wait_for_a_throttle_and_keeps_the_connection(
    fake: FakeKafka, connection: Connection
) -> None:
    throttled(fake, connection, LONG)
    wakeup = WakeupPipe()
    ended = threading.Timer(0.05, wakeup.set)
    ended.start()
    with pytest.raises(Interrupted):
        connection.send(heartbeat(), Deadline.after(LONG * 2, wakeup=wakeup))
    assert connection.is_reusable()
    ended.join()
    wakeup.close()


def test_a_cluster_reports_which_of_its_connections_are_throttled(
    fake: FakeKafka, cluster: Cluster, connection: Connection
) -> None:
    throttled(fake, connection, BEYOND)
    assert cluster.throttle_remaining(1, "test") > BEYOND - LONG
    assert (
        cluster.throttle_remaining(1, "fetch")
        == cluster.throttle_remaining(1)
        == cluster.throttle_remaining(9, "test")
        == 0
    )
    connection.close()
    assert cluster.throttle_remaining(1, "test") == 0


def test_the_longest_throttle_counts_and_the_log_line_is_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    found = Throttle("1 (b:1)", clock)
    found.record(0.0)
    assert not caplog.records
    found.record(20.0)
    found.record(5.0)
    assert found.remaining() == 20.0
    clock.now += WARN_EVERY
    assert found.remaining() == 0.0
    found.record(1.5)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"broker 1 (b:1) throttles this client, now for {seconds} s: a quota is exceeded" for seconds in ("20.0", "1.5")
    ]
