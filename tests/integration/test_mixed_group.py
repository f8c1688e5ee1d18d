"""A query beside members of other clients in one group: librdkafka and Java."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.broker import java_command
from tests.integration.query_process import Place, eventually, source_options
from tests.integration.standing import fill, partitions_per_member

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 8
SESSION_MS = 6000
STABLE_S = 8.0
"""For which a group is watched: longer than its members' sessions."""


class Consumer(ABC):
    """A consumer of another client on a thread of its own, from entering to leaving."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Consumes until it is to end."""


class Librdkafka(Consumer):
    def __init__(self, kafka: EmbeddedKafka, topic: str, group: str) -> None:
        super().__init__()
        import confluent_kafka

        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "session.timeout.ms": f"{SESSION_MS}",
            "heartbeat.interval.ms": "200",
        }
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe([topic])

    def _run(self) -> None:
        while not self._ended.is_set():
            record = self._consumer.poll(0.1)
            if record is not None and not record.error():
                partition, offset = record.partition(), record.offset()
                assert partition is not None
                assert offset is not None
                self.places.append((partition, offset))
        self._consumer.close()


class Java(Consumer):
    """Kafka's own kafka-console-consumer."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, group: str) -> None:
        super().__init__()
        properties = {
            "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": str(SESSION_MS),
            "heartbeat.interval.ms": "200",
        }
        arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--group", group]
        for name, value in properties.items():
            arguments += ["--consumer-property", f"{name}={value}"]
        for name in ("partition", "offset"):
            arguments += ["--property", f"print.{name}=true"]
        main = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        # Its log goes nowhere: in a pipe that nobody reads, the lines of many rebalances would stop it.
        self._process = subprocess.Popen(
            java_command(kafka.libs, "256m", main, arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __exit__(self, *_: object) -> None:
        # In order: it leaves the group.
        self._process.terminate()
        super().__exit__()
        self._process.communicate()

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"Partition:(\d+)\s+Offset:(\d+)", line)
            if found:
                self.places.append((int(found[1]), int(found[2])))


@pytest.fixture
def others(kafka: EmbeddedKafka, topic: Callable[..., str], group: str) -> Iterator[tuple[str, list[Consumer]]]:
    """A topic, and running consumers of other clients in the test's group."""
    name = topic(partitions=PARTITIONS)
    with ExitStack() as running:
        yield name, [running.enter_context(kind(kafka, name, group)) for kind in (Librdkafka, Librdkafka, Java)]


@pytest.mark.slow
def test_a_query_and_every_other_client_of_one_group_read_all_records(
    spark: SparkSession, kafka: EmbeddedKafka, group: str, others: tuple[str, list[Consumer]]
) -> None:
    name, consumers = others
    mine: list[Place] = []

    def keep(rows: DataFrame, number: int) -> None:
        mine.extend((row.partition, row.offset) for row in rows.select("partition", "offset").collect())

    def read() -> set[Place]:
        return {place for each in consumers for place in list(each.places)} | set(mine)

    def stays_even() -> bool:
        """Whether the group is split evenly, and none of its members changes for longer than a session."""
        members, watched_until = kafka.members(group), time.monotonic() + STABLE_S
        while [each.partitions for each in members] == [2, 2, 2, 2] and kafka.group_state(group) == "Stable":
            if time.monotonic() > watched_until:
                return kafka.members(group) == members
            everything.update(fill(kafka, name, 5))
        return False

    eventually(
        lambda: sum(partitions_per_member(kafka, group)) == PARTITIONS and len(partitions_per_member(kafka, group)) == 3
    )
    everything = fill(kafka, name, 20)
    options = source_options(kafka, name, group, **{"kafka.partition.assignment.strategy": "range"})
    frame = spark.readStream.format("kafka-group").options(**options).load()
    query = frame.writeStream.foreachBatch(keep).start()
    try:
        eventually(stays_even, what="an even split that stays")
        eventually(lambda: read() == everything, what="reading all")
        assert all(consumer.places for consumer in consumers)
        assert mine
        assert query.exception() is None
    finally:
        query.stop()
    eventually(lambda: len(partitions_per_member(kafka, group)) == 3, what="the others taking over")
    everything |= fill(kafka, name, 20)
    eventually(lambda: read() == everything, what="the others reading all")
    assert len(mine) == len(set(mine)), "the query read nothing twice"
