"""A rack given: the replica there serves the records, and not the leader. Two brokers in racks of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.fetch import reader
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader
from spark_group_source.spark.tasks import Application
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.integration.query_process import source_options

TIMEOUT_S = 60.0
RECORDS = 2000
RACKS = {
    "broker.rack": "rack-{node}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers of this test's own: it stands one still."""
    with EmbeddedKafka(brokers=2, heap="384m", config=RACKS) as running:
        yield running
    for _, kept in reader._idle_clusters.values():
        kept.close()
    reader._idle_clusters.clear()


def test_the_replica_in_the_readers_rack_serves_records_even_while_the_leader_is_paused(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    kafka.produce(name, [b"x" * 1000] * RECORDS, batch_size=10_000, acks="all")
    servers = tuple(
        (host, int(port)) for host, port in (each.split(":") for each in kafka.bootstrap_servers.split(","))
    )
    cluster = Cluster(WireOptions(servers, "test"))
    try:
        told = cluster.metadata({name}, Deadline.after(TIMEOUT_S))
    finally:
        cluster.close()
    leader = told.topics[name].partitions[0]
    assert leader is not None
    follower = 3 - leader
    assert told.brokers[follower].rack == f"rack-{follower}"

    given = source_options(
        kafka, name, group, **{"kafka.client.rack": f"rack-{follower}", "kafka.max.partition.fetch.bytes": "20000"}
    )
    reader = GroupStreamReader(parse_options(given), source_schema(False), Application())
    ranges = {TopicPartition(name, 0): OffsetRange(name, 0, 0, RECORDS, told.topics[name].id)}
    (task,) = reader.partitions(BatchOffset().as_json(), BatchOffset(ranges).as_json())
    # Afterwards the follower knows that all of it is replicated: it tells nobody more than it knows of that.
    assert sum(batch.num_rows for batch in reader.read(task)) == RECORDS
    with caplog.at_level(logging.INFO):
        batches = reader.read(task)
        offsets = next(batches)["offset"].to_pylist()
        kafka.pause(leader)
        try:
            for batch in batches:
                offsets += batch["offset"].to_pylist()
        finally:
            kafka.resume(leader)
    assert f"{name}-0 is read from broker {follower}, the preferred replica for rack rack-{follower}" in caplog.text
    assert "from its leader again" not in caplog.text
    assert offsets == list(range(RECORDS))
