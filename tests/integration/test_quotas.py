"""Brokers that throttle by quota: what is read comes slower, and no connection is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.fetch.reader import TaskReader
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import LATEST, OffsetRange, TopicPartition
from spark_group_source.query import size_samples
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import BRIEF, java_command
from spark_group_source.wire import tcp
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import list_offsets
from spark_group_source.wire.wire_options import WireOptions
from tests.integration.standing import wire

LONG = 90.0
WINDOW_S, WINDOWS = 2, 3
"""Quotas are measured over so many windows, and a request is throttled for one at most."""
RECORDS, RECORD_BYTES = 40, 50_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """One whose throttles are longer than a request may take."""
    with EmbeddedKafka(
        config={"quota.window.size.seconds": str(WINDOW_S), "quota.window.num": str(WINDOWS)}
    ) as running:
        yield running


@pytest.fixture
def limited(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> Callable[[str], WireOptions]:
    """Makes a client with a quota, for example ``request_percentage=0.01``."""

    def make(quota: str) -> WireOptions:
        client = unique("client")
        arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--alter", "--add-config", quota]
        arguments += ["--entity-type", "clients", "--entity-name", client]
        quick = (BRIEF, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        command = java_command(kafka.libs, "256m", "kafka.admin.ConfigCommand", arguments, *quick)
        subprocess.run(command, check=True, capture_output=True, timeout=LONG)
        return wire(kafka, client)

    return make


def test_a_connection_throttled_beyond_a_deadline_is_reused(limited: Callable[[str], WireOptions]) -> None:
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    with closing(Cluster(limited("request_percentage=0.01"))) as cluster:
        cluster.metadata([], Deadline.after(LONG))
        kept = cluster.connection(1, Deadline.after(LONG), "test")
        until = Deadline.after(LONG)
        while not until.expired() and cluster.throttle_remaining(1, "test") < 1.0:
            kept.call(request, Deadline.after(LONG))
        with pytest.raises(DeadlineExceeded, match="throttles this client for another"):
            kept.call(request, Deadline.after(0.5))
        assert kept.is_reusable()
        assert kept.call(request, Deadline.after(LONG)).coordinators


def test_a_task_under_a_byte_quota_reads_everything_over_the_same_connections(
    kafka: EmbeddedKafka,
    limited: Callable[[str], WireOptions],
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = kafka.create_topic(unique("topic"))
    kafka.produce(topic, [f"{number:0{RECORD_BYTES}d}" for number in range(RECORDS)])
    opened = []
    connect = tcp.connect

    def counted(*given: Any) -> Any:
        opened.append(given)
        return connect(*given)

    monkeypatch.setattr(tcp, "connect", counted)
    # All windows' worth is read at once, and the rest as fast as the quota allows.
    client = limited(f"consumer_byte_rate={RECORDS * RECORD_BYTES // ((WINDOWS + 2) * WINDOW_S)}")
    settings = FetchSettings(fetch_max_bytes=300_000)
    task = FetchTask((OffsetRange(topic, 0, 0, RECORDS, ""),), client, arrow_schema(["offset"]), settings)
    with closing(Cluster(client)) as cluster:
        offsets = [row["offset"] for rows in TaskReader(task, cluster).batches() for row in rows.to_pylist()]
    assert offsets == list(range(RECORDS))
    assert "throttles this client" in caplog.text
    assert len(opened) <= 3, "one to ask anybody, one to ask the broker, one to fetch"


def test_a_byte_quota_stops_the_samples_of_sizes_and_not_the_lookups_of_end_offsets(
    kafka: EmbeddedKafka, limited: Callable[[str], WireOptions], unique: Callable[[str], str]
) -> None:
    topic = kafka.create_topic(unique("topic"))
    kafka.produce(topic, ["x" * RECORD_BYTES] * RECORDS)
    tp = TopicPartition(topic, 0)
    with closing(Cluster(limited("consumer_byte_rate=1000"))) as cluster:
        topics = cluster.topics({topic}, Deadline.after(LONG))
        until = Deadline.after(LONG)
        while not until.expired() and cluster.throttle_remaining(1, size_samples.SAMPLES) < 1.0:
            size_samples.sample_sizes(cluster, topics, {tp: 0}, 2**20, Deadline.after(LONG))
        deadline = Deadline.after(0.5)
        assert list_offsets(cluster, {tp: LATEST}, read_committed=False, deadline=deadline).offsets == {tp: RECORDS}
        sizes, silent = size_samples.sample_sizes(cluster, topics, {tp: 0}, 2**20, deadline)
        assert (sizes, silent) == ({}, {tp})
