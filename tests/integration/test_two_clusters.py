"""Two real clusters with a topic of one name whose addresses change places: Spark reads and commits only its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Read
from tests.integration.query_process import eventually, source_options
from tests.integration.redirect import HOST, Redirect

pytestmark = pytest.mark.slow

PARTITIONS, FIRST, SECOND = 4, 20, 10
"""Records of each partition before and after the change."""


class Redirected:
    """A cluster of one broker that advertises an address of its own."""

    def __init__(self, stack: ExitStack, arguments: dict[str, Any]) -> None:
        self.address = stack.enter_context(closing(Redirect()))
        advertised = {"advertised.listeners": f"PLAINTEXT://{HOST}:{self.address.port}"}
        self.kafka = stack.enter_context(EmbeddedKafka(heap="384m", config=advertised, **arguments))
        self.port = int(self.kafka.bootstrap_servers.rsplit(":")[-1])
        self.address.to(self.port)
        for answer in ("true", "false"):  # before any change: an admin client may keep to the other cluster after it
            self.kafka.create_topic(f"orders-{answer}", partitions=PARTITIONS)

    def produce(self, topic: str, value: str, count: int) -> None:
        with self.kafka.producer() as producer:  # a kept one may have reached the other cluster
            for number in range(PARTITIONS * count):
                producer.send(topic, value.encode(), partition=number % PARTITIONS)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The committed offset by partition, from a new client: a kept one may follow the other cluster's metadata."""
        with self.kafka.admin() as admin:
            offsets = admin.list_group_offsets(group)[group]
        return {tp.partition: each.offset for tp, each in offsets.items() if tp.topic == topic}

    def groups(self) -> set[str]:
        """The ids of all groups, from a new client."""
        with self.kafka.admin() as admin:
            return {group["group_id"] for group in admin.list_groups()}


@pytest.fixture(scope="module")
def clusters(embedded_kafka_arguments: dict[str, Any]) -> Iterator[tuple[Redirected, Redirected]]:
    with ExitStack() as stack:
        yield Redirected(stack, embedded_kafka_arguments), Redirected(stack, embedded_kafka_arguments)


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_query_waits_while_another_cluster_has_its_brokers_address(
    spark: SparkSession, clusters: tuple[Redirected, Redirected], read: Read, group: str, fail_on_data_loss: str
) -> None:
    own, other = clusters
    name = f"orders-{fail_on_data_loss}"
    own.produce(name, "own", FIRST)
    other.produce(name, "foreign", 2 * FIRST)
    more = {"failOnDataLoss": fail_on_data_loss, "kafka.metadata.max.age.ms": "500"}
    frame = spark.readStream.format("kafka-group").options(**source_options(own.kafka, name, group, **more))
    first = read(frame.load(), "checkpoint")
    eventually(lambda: len(first.values) == PARTITIONS * FIRST, what="reading all")
    connections = own.address.connections
    own.address.to(other.port)
    eventually(lambda: own.address.connections > connections + 20, what="checks of the other cluster")
    assert first.query.exception() is None
    own.address.to(own.port)
    own.produce(name, "own", SECOND)
    eventually(lambda: len(first.values) == PARTITIONS * (FIRST + SECOND), what="reading on")
    ends = dict.fromkeys(range(PARTITIONS), FIRST + SECOND)
    eventually(lambda: own.committed(group, name) == ends, what="the commits")
    assert set(first.values) == {"own"}
    first.stop()
    assert group not in other.groups()
    wrong = read(frame.option("kafka.bootstrap.servers", other.kafka.bootstrap_servers).load(), "checkpoint")
    assert "[OTHER_CLUSTER]" in wrong.error()
    assert wrong.values == []
