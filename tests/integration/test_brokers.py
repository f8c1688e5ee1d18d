"""Brokers that die under running queries: a cluster of three, real Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.integration.query_process import Place, eventually, source_options
from tests.integration.standing import places_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RESUME_S = 90.0
TIMEOUT_S = 90.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers of each test's own: it kills one."""
    with EmbeddedKafka(brokers=3, heap="384m", config={"min.insync.replicas": "1"}) as running:
        yield running


@pytest.fixture
def cluster(kafka: EmbeddedKafka) -> Iterator[Cluster]:
    """Tells who coordinates and who leads."""
    servers = [each.rsplit(":", 1) for each in kafka.bootstrap_servers.split(",")]
    found = Cluster(WireOptions(tuple((host, int(port)) for host, port in servers), "test"))
    yield found
    found.close()


class Producing:
    """Writes ten records a second to each partition while a ``with`` block runs."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, partitions: int) -> None:
        self._kafka, self._topic, self._partitions = kafka, topic, partitions
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _produce(self) -> None:
        with self._kafka.producer(acks="all") as producer:
            while not self._ended.wait(0.1):
                for partition in range(self._partitions):
                    producer.send(self._topic, value=b"value", partition=partition)


def test_commits_resume_soon_after_the_death_of_the_coordinator_and_nothing_is_lost(
    spark: SparkSession, kafka: EmbeddedKafka, cluster: Cluster, topic: Callable[..., str], group: str
) -> None:
    name = topic(partitions=3)
    read: list[Place] = []

    def keep(rows: DataFrame, number: int) -> None:
        read.extend((row.partition, row.offset) for row in rows.select("partition", "offset").collect())

    frame = spark.readStream.format("kafka-group").options(**source_options(kafka, name, group)).load()
    query = frame.writeStream.foreachBatch(keep).start()
    try:
        with Producing(kafka, name, 3):
            eventually(lambda: sum(kafka.committed(group, name).values()) > 50, what="the first commits")
            kafka.kill(cluster.find_coordinator(group, Deadline.after(TIMEOUT_S)).id)
            killed_at = time.monotonic()
            before = kafka.committed(group, name)
            eventually(
                lambda: all(offset > before[tp] for tp, offset in kafka.committed(group, name).items()),
                what="a commit of every partition",
            )
            took = time.monotonic() - killed_at
            print(f"every partition committed again {took:.1f} s after the coordinator's death")
            assert took < RESUME_S
        eventually(lambda: set(read) >= places_in(kafka, name), what="reading all")
        eventually(lambda: sum(kafka.committed(group, name).values()) == len(places_in(kafka, name)))
        assert query.exception() is None
    finally:
        query.stop()
    assert sorted(read) == sorted(places_in(kafka, name)), "every record is there, once"


def test_a_task_continues_with_the_new_leader_when_the_leader_dies_during_the_read(
    spark: SparkSession, kafka: EmbeddedKafka, cluster: Cluster, topic: Callable[..., str], group: str, tmp_path: Path
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

    frame = spark.readStream.format("kafka-group").options(**source_options(kafka, name, group)).load()
    query = frame.writeStream.foreachBatch(keep).start()
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


def leader(cluster: Cluster, topic: str) -> int:
    found = cluster.metadata({topic}, Deadline.after(TIMEOUT_S)).topics[topic].partitions[0]
    assert found is not None, "there is no leader"
    return found
