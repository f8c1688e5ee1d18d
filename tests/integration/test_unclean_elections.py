"""An unclean leader is elected, and its log grows beyond what was read: three real brokers, real Spark."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.integration.query_process import eventually, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.core

TIMEOUT_S = 120
LEADER, FOLLOWER = 1, 2
REPLICATED, READ, GROWN = 10, 20, 35
"""Records that both replicas had; that the leader had, and that were read; that the next leader has in the end."""

OLD = [f"old-{each}" for each in range(READ)]
NEW = [*OLD[:REPLICATED], *(f"new-{each}" for each in range(REPLICATED, GROWN))]


@pytest.fixture
def kafka(embedded_kafka_arguments: dict[str, Any]) -> Iterator[EmbeddedKafka]:
    """Three brokers of this test's own: it kills the leader, and two are left for a quorum."""
    config = {"min.insync.replicas": "1"}
    with EmbeddedKafka(brokers=3, heap="384m", config=config, **embedded_kafka_arguments) as running:
        yield running


class Query:
    """One query of the topic with a group and a checkpoint of its own; ``values`` are those of completed batches."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, checkpoint: Path) -> None:
        self.values: list[str] = []
        self.failing = False
        self._options = source_options(kafka, topic, group)
        self._spark = spark
        self._checkpoint = checkpoint

    def start(self, available_now: bool = True, fail_on_data_loss: str = "true") -> StreamingQuery:
        options = {**self._options, "failOnDataLoss": fail_on_data_loss}
        frame = self._spark.readStream.format("kafka-group").options(**options).load()
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, fail_on_data_loss: str = "true") -> list[str]:
        """What a run to the end of the log reads."""
        self.values.clear()
        query = self.start(fail_on_data_loss=fail_on_data_loss)
        try:
            assert query.awaitTermination(TIMEOUT_S)
        finally:
            query.stop()
        return self.values

    def error(self, query: StreamingQuery) -> str:
        """The error that a query ends with."""
        try:
            eventually(lambda: not query.isActive, TIMEOUT_S, "the end of the query")
            return str(query.exception())
        finally:
            query.stop()

    def _keep(self, rows: DataFrame, number: int) -> None:
        found = [bytes(row.value).decode() for row in rows.select("value", "offset").orderBy("offset").collect()]
        if self.failing:
            raise ValueError("this batch fails")
        self.values += found


def create(kafka: EmbeddedKafka, name: str) -> str:
    """A topic with two replicas."""
    from kafka.admin import NewTopic

    with kafka.admin() as admin:
        topic = NewTopic(name, replica_assignments={0: [LEADER, FOLLOWER]})
        admin.create_topics([topic], wait_for_metadata=True)
    return name


def leads(kafka: EmbeddedKafka, topic: str, broker: int) -> bool:
    servers = [each.rsplit(":", 1) for each in kafka.bootstrap_servers.split(",")]
    cluster = Cluster(WireOptions(tuple((host, int(port)) for host, port in servers), "test"))
    try:
        return cluster.metadata({topic}, Deadline.after(TIMEOUT_S)).topics[topic].partitions.get(0) == broker
    finally:
        cluster.close()


def elect_follower(kafka: EmbeddedKafka, topic: str) -> None:
    """The leader dies with records that the follower never had, and the follower gets more than these were."""
    from kafka.errors import KafkaError
    from kafka.protocol.admin.topics import ElectionType

    def elected() -> bool:
        # By hand: before Kafka 4 the brokers do not do it by themselves. The client may still ask the broker that died.
        with contextlib.suppress(KafkaError), kafka.admin() as admin:
            admin.elect_leaders(ElectionType.UNCLEAN, {topic: [0]}, raise_errors=False)
        return leads(kafka, topic, FOLLOWER)

    kafka.kill(LEADER)
    kafka.start(FOLLOWER)
    eventually(elected, TIMEOUT_S, "the election")
    kafka.produce(topic, NEW[REPLICATED:], acks="all")
    assert kafka.end_offsets(topic) == {0: GROWN}


def test_records_that_an_unclean_election_replaced_are_data_loss_or_read_again(
    spark: SparkSession, kafka: EmbeddedKafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = create(kafka, unique("topic"))
    eventually(lambda: leads(kafka, topic, LEADER), TIMEOUT_S, "the leader")
    kafka.produce(topic, OLD[:REPLICATED], acks="all")
    kafka.stop(FOLLOWER)
    kafka.produce(topic, OLD[REPLICATED:], acks="all")

    running, restarted, replayed = (
        Query(spark, kafka, topic, unique(name), tmp_path / name) for name in ("running", "restarted", "replayed")
    )
    query = running.start(available_now=False)
    eventually(lambda: running.values == OLD, TIMEOUT_S, "reading all")
    assert restarted.run() == OLD
    replayed.failing = True
    assert "this batch fails" in replayed.error(replayed.start())
    replayed.failing = False

    elect_follower(kafka, topic)

    truncated = f"log of {topic}-0 was truncated at offset {REPLICATED}, before offset {READ}"
    assert truncated in running.error(query)
    assert truncated in running.error(running.start())
    assert running.run("false") == NEW[REPLICATED:]
    assert truncated in restarted.error(restarted.start())
    assert restarted.run("false") == NEW[REPLICATED:]
    assert f"Offsets [{REPLICATED}, {READ}) of {topic}-0" in replayed.error(replayed.start())
    # On PySpark 4.1 a run is one batch: the first run of two repeats the one that failed.
    runs = [list(replayed.run("false")) for _ in range(2 if pyspark.__version__.startswith("4.1.") else 1)]
    assert list(itertools.chain(*runs)) == NEW
    # What was accepted is over.
    kafka.produce(topic, ["more"], acks="all")
    assert [each.run() for each in (running, restarted, replayed)] == [["more"]] * 3
