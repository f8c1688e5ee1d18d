"""Brokers that die, stand still or lose records under running queries: real Spark."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from spark_group_source.clock import Deadline
from spark_group_source.fetch import cluster_pool
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.spark.application import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from tests.drivers import drivers
from tests.integration.conftest import Read, Reader, Stream
from tests.integration.query_process import eventually, source_options
from tests.integration.standing import Producing, caught_up, places_in, wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

RESUME_S = 90.0
TIMEOUT_S = 120
LEADER, FOLLOWER = 1, 2
REPLICATED, READ, GROWN = 10, 20, 35
"""Records that both replicas had; that the leader had, and that were read; that the next leader has in the end."""

OLD = [f"old-{each}" for each in range(READ)]
NEW = [*OLD[:REPLICATED], *(f"new-{each}" for each in range(REPLICATED, GROWN))]


@pytest.fixture(scope="module")
def nodes(embedded_kafka_arguments: dict[str, Any]) -> Iterator[EmbeddedKafka]:
    """Three brokers in racks of their own."""
    config = {
        "min.insync.replicas": "1",
        "broker.rack": "rack-{node}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with EmbeddedKafka(brokers=3, heap="384m", config=config, **embedded_kafka_arguments) as running:
        yield running


@pytest.fixture
def kafka(nodes: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """The brokers, which all run again after the test."""
    yield nodes
    for node in (1, 2, 3):
        if nodes.pid(node) is None:
            nodes.start(node)


@pytest.fixture
def cluster(kafka: EmbeddedKafka) -> Iterator[Cluster]:
    """Tells who coordinates and who leads."""
    with closing(Cluster(wire(kafka))) as found:
        yield found


@pytest.fixture
def idle_clusters() -> Iterator[None]:
    """Closes the connections that a task has kept in this process."""
    yield
    for _, kept in cluster_pool._idle_clusters.values():
        kept.close()
    cluster_pool._idle_clusters.clear()


def leader(cluster: Cluster, topic: str) -> int | None:
    """The leader of the topic's first partition."""
    return cluster.metadata({topic}, Deadline.after(TIMEOUT_S)).topics[topic].partitions.get(0)


def coordinator(cluster: Cluster, group: str) -> int:
    """The node that coordinates the group."""
    return cluster.find_coordinator(group, Deadline.after(TIMEOUT_S)).id


def test_commits_resume_soon_after_the_death_of_the_coordinator_and_nothing_is_lost(
    kafka: EmbeddedKafka, cluster: Cluster, topic: Callable[..., str], group: str, stream: Stream, read: Read
) -> None:
    name = topic(partitions=3)
    reader = read(stream(name))
    with Producing(kafka, name, 3):
        eventually(lambda: sum(kafka.committed(group, name).values()) > 50, what="the first commits")
        kafka.kill(coordinator(cluster, group))
        killed_at = time.monotonic()
        before = kafka.committed(group, name)
        eventually(
            lambda: all(offset > before[tp] for tp, offset in kafka.committed(group, name).items()),
            what="a commit of every partition",
        )
        took = time.monotonic() - killed_at
        print(f"every partition committed again {took:.1f} s after the coordinator's death")
        assert took < RESUME_S
    eventually(lambda: set(reader.places) >= places_in(kafka, name), what="reading all")
    eventually(lambda: caught_up(kafka, name, group))
    assert reader.query.exception() is None
    reader.stop()
    assert sorted(reader.places) == sorted(places_in(kafka, name)), "every record is there, once"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_query_that_ends_as_its_coordinator_shuts_down_commits_its_batch(
    kafka: EmbeddedKafka, cluster: Cluster, topic: Callable[..., str], group: str, protocol: str
) -> None:
    name = topic(partitions=2)
    kafka.produce(name, ["a", "b", "c"], partition=1)
    with drivers(source_options(kafka, name, group, protocol)) as start:
        driver = start()
        planned = driver.plan_batch(BatchOffset(), None)
        assert [(read.partition, read.end) for read in planned.reads()] == [(1, 3)]
        node = coordinator(cluster, group)
        shutdown = threading.Thread(target=kafka.stop, args=(node,))
        shutdown.start()
        eventually(lambda: coordinator(cluster, group) != node, what="the move of the coordinator")
        driver.complete(planned)
        driver.close()
        shutdown.join()
    assert kafka.committed(group, name)[name, 1] == 3
    assert kafka.group_state(group) == "Empty", "the member has left"


def test_a_task_continues_with_the_new_leader_when_the_leader_dies_during_the_read(
    kafka: EmbeddedKafka, cluster: Cluster, topic: Callable[..., str], group: str, stream: Stream, tmp_path: Path
) -> None:
    name = topic(partitions=1)
    count = 60_000
    kafka.produce(name, [b"x" * 1000] * count, partition=0, batch_size=200_000)
    begun, may_go_on = tmp_path / "begun", tmp_path / "may-go-on"

    def wait_in_the_middle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            while not may_go_on.exists():
                time.sleep(0.05)
            yield batch.select(["offset"])

    offsets: list[int] = []
    batches: list[int] = []

    def keep(rows: DataFrame, number: int) -> None:
        batches.append(number)
        read: Any = rows.mapInArrow(wait_in_the_middle, "offset bigint")
        offsets.extend(read.toArrow()["offset"].to_pylist())

    query = stream(name).writeStream.foreachBatch(keep).start()
    try:
        eventually(begun.exists)
        kafka.kill(leader(cluster, name))
        may_go_on.touch()
        eventually(lambda: kafka.committed(group, name) == {(name, 0): count}, what="the commit of the batch")
        assert query.exception() is None
    finally:
        may_go_on.touch()
        query.stop()
    assert batches == [0], "the task went on, it was not made anew"
    assert sorted(offsets) == list(range(count))


def test_the_replica_in_the_readers_rack_serves_records_even_while_the_leader_is_paused(
    kafka: EmbeddedKafka,
    cluster: Cluster,
    topic: Callable[..., str],
    group: str,
    caplog: pytest.LogCaptureFixture,
    idle_clusters: None,
) -> None:
    name = topic()
    kafka.produce(name, [b"x" * 1000] * 2000, batch_size=10_000, acks="all")
    told = cluster.metadata({name}, Deadline.after(TIMEOUT_S))
    leading = leader(cluster, name)
    assert leading is not None
    follower = leading % 3 + 1
    assert told.brokers[follower].rack == f"rack-{follower}"

    given = source_options(
        kafka, name, group, **{"kafka.client.rack": f"rack-{follower}", "kafka.max.partition.fetch.bytes": "20000"}
    )
    stream = GroupStreamReader(parse_options(given), source_schema(False), Application())
    ranges = {TopicPartition(name, 0): OffsetRange(name, 0, 0, 2000, told.topics[name].id)}
    (task,) = stream.partitions(BatchOffset().as_json(), BatchOffset(ranges).as_json())
    # Afterwards the follower knows that all of it is replicated: it tells nobody more than it knows of that.
    assert sum(batch.num_rows for batch in stream.read(task)) == 2000
    with caplog.at_level(logging.INFO):
        batches = stream.read(task)
        offsets = next(batches)["offset"].to_pylist()
        kafka.pause(leading)
        try:
            for batch in batches:
                offsets += batch["offset"].to_pylist()
        finally:
            kafka.resume(leading)
    assert f"reading {name}-0 from broker {follower}, the preferred replica for rack rack-{follower}" in caplog.text
    assert "from its leader again" not in caplog.text
    assert offsets == list(range(2000))


def elect_follower(kafka: EmbeddedKafka, cluster: Cluster, topic: str) -> None:
    """The leader dies with records that the follower never had, and the follower gets more than these were."""
    from kafka.errors import KafkaError
    from kafka.protocol.admin.topics import ElectionType

    def elected() -> bool:
        # By hand: before Kafka 4 the brokers do not do it by themselves. The client may still ask the broker that died.
        with contextlib.suppress(KafkaError), kafka.admin() as admin:
            admin.elect_leaders(ElectionType.UNCLEAN, {topic: [0]}, raise_errors=False)
        return leader(cluster, topic) == FOLLOWER

    kafka.kill(LEADER)
    kafka.start(FOLLOWER)
    eventually(elected, TIMEOUT_S, "the election")
    kafka.produce(topic, NEW[REPLICATED:], acks="all")
    assert kafka.end_offsets(topic) == {0: GROWN}


@pytest.mark.core
@pytest.mark.needs("leader epochs")
def test_records_that_an_unclean_election_replaced_are_data_loss_or_read_again(
    kafka: EmbeddedKafka, cluster: Cluster, unique: Callable[[str], str], stream: Stream, read: Read
) -> None:
    from kafka.admin import NewTopic

    topic = unique("topic")
    with kafka.admin() as admin:
        admin.create_topics([NewTopic(topic, replica_assignments={0: [LEADER, FOLLOWER]})], wait_for_metadata=True)
    eventually(lambda: leader(cluster, topic) == LEADER, TIMEOUT_S, "the leader")
    kafka.produce(topic, OLD[:REPLICATED], acks="all")
    coordinator(cluster, topic)  # with ZooKeeper two nodes could not create the topic of the offsets
    kafka.stop(FOLLOWER)
    kafka.produce(topic, OLD[REPLICATED:], acks="all")

    running, replayed = unique("running"), unique("replayed")

    def start(group: str, fail_on_data_loss: str = "true", failing: bool = False, **trigger: bool) -> Reader:
        """Starts a query with a group and a checkpoint of its own, which a later run continues."""
        frame = stream(topic, failOnDataLoss=fail_on_data_loss, **{"kafka.group.id": group})
        reader: Reader = read(frame, group, failing=failing, **trigger)
        return reader

    def run(group: str, fail_on_data_loss: str = "true") -> list[str]:
        """What a run to the end of the log reads."""
        return start(group, fail_on_data_loss, availableNow=True).to_end().values

    first = start(running)
    eventually(lambda: first.values == OLD, TIMEOUT_S, "reading all")
    assert "this batch fails" in start(replayed, failing=True, availableNow=True).error()

    elect_follower(kafka, cluster, topic)

    truncated = f"log of {topic}-0 was truncated at offset {REPLICATED}, before offset {READ}"
    assert truncated in first.error()
    assert truncated in start(running, availableNow=True).error()
    assert run(running, "false") == NEW[REPLICATED:]
    assert f"Offsets [{REPLICATED}, {READ}) of {topic}-0" in start(replayed, availableNow=True).error()
    # On PySpark 4.1 a run is one batch: the first run of two repeats the one that failed.
    runs = [run(replayed, "false") for _ in range(2 if pyspark.__version__.startswith(("4.0.", "4.1.")) else 1)]
    assert list(itertools.chain(*runs)) == NEW
    # What was accepted is over.
    kafka.produce(topic, ["more"], acks="all")
    assert [run(each) for each in (running, replayed)] == [["more"]] * 2
