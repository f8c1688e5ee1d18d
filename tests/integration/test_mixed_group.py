"""A query beside members of other clients in one group: librdkafka and Java."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import java_command
from tests.integration.conftest import Read, Stream
from tests.integration.query_process import Place, eventually
from tests.integration.standing import fill, partitions_per_member

PARTITIONS = 8
TIMES = {"auto.offset.reset": "earliest", "session.timeout.ms": "6000", "heartbeat.interval.ms": "200"}
STABLE_S = 8.0
"""For which a group is watched: longer than its members' sessions."""


class Consumer(ABC):
    """A consumer of another client on a thread of its own, until it is closed."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leaves the group in order."""
        self._ended.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Consumes until it is to end."""


class Librdkafka(Consumer):
    """With ``commits_records`` it commits the offset after each record, and by itself nothing."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, group: str, *, commits_records: bool = False) -> None:
        import confluent_kafka

        self._commits_records = commits_records
        config = TIMES | {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
        config["enable.auto.commit"] = "false" if commits_records else "true"
        self._consumer = confluent_kafka.Consumer(config | {"partition.assignment.strategy": "range"})
        self._consumer.subscribe([topic])
        super().__init__()

    def _run(self) -> None:
        while not self._ended.is_set():
            record = self._consumer.poll(0.1)
            if record is not None and not record.error():
                partition, offset = record.partition(), record.offset()
                assert partition is not None
                assert offset is not None
                if self._commits_records:
                    self._consumer.commit(message=record, asynchronous=False)
                self.places.append((partition, offset))
        self._consumer.close()


class Java(Consumer):
    """Kafka's own kafka-console-consumer."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, group: str) -> None:
        properties = TIMES | {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"}
        arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--group", group]
        for name, value in properties.items():
            arguments += ["--consumer-property", f"{name}={value}"]
        for name in ("partition", "offset"):
            arguments += ["--property", f"print.{name}=true"]
        command = java_command(kafka.libs, "256m", "org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
        # Its log goes nowhere: in a pipe that nobody reads, the lines of many rebalances would stop it.
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        super().__init__()

    def close(self) -> None:
        self._process.terminate()
        super().close()
        self._process.communicate()

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"Partition:(\d+)\s+Offset:(\d+)", line):
                self.places.append((int(found[1]), int(found[2])))


@pytest.fixture
def others(kafka: EmbeddedKafka, topic: Callable[..., str], group: str) -> Iterator[tuple[str, list[Consumer]]]:
    """A topic, and running consumers of other clients in the test's group."""
    name = topic(partitions=PARTITIONS)
    running: list[Consumer] = [kind(kafka, name, group) for kind in (Librdkafka, Librdkafka, Java)]
    yield name, running
    for each in running:
        each.close()


def test_a_run_ends_beside_a_client_that_commits_the_offset_after_its_last_record(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, stream: Stream, read: Read
) -> None:
    """The target lies behind the markers of a transaction, and behind one that was aborted."""
    name = topic(partitions=2)
    producer = transactional_producer(kafka, group)
    other = Librdkafka(kafka, name, group, commits_records=True)
    try:
        eventually(lambda: partitions_per_member(kafka, group) == [2], what="the assignment of the other client")
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for number in range(10):
                producer.produce(name, f"v{number}", partition=number % 2)
            producer.flush()
            end()
        eventually(lambda: len(other.places) == 10, what="reading by the other client")
        options = {"kafka.partition.assignment.strategy": "range", "kafka.isolation.level": "read_uncommitted"}
        run = read(stream(name, **options), availableNow=True).to_end()
    finally:
        other.close()
    assert run.query.exception() is None
    behind = [number for number, end in kafka.end_offsets(name).items() if kafka.committed(group)[name, number] < end]
    assert len(behind) == 1, "the other client's partition"


def transactional_producer(kafka: EmbeddedKafka, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    return producer


@pytest.mark.slow
def test_a_query_and_every_other_client_of_one_group_read_all_records(
    kafka: EmbeddedKafka, group: str, others: tuple[str, list[Consumer]], stream: Stream, read: Read
) -> None:
    name, consumers = others

    def all_read(*more: Place) -> bool:
        return {place for each in consumers for place in list(each.places)} | {*more} == everything

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
    reader = read(stream(name, **{"kafka.partition.assignment.strategy": "range"}))
    eventually(stays_even, what="an even split that stays")
    eventually(lambda: all_read(*reader.places), what="reading all")
    assert all(consumer.places for consumer in consumers)
    assert reader.places
    assert reader.query.exception() is None
    reader.stop()
    eventually(lambda: len(partitions_per_member(kafka, group)) == 3, what="the others taking over")
    everything |= fill(kafka, name, 20)
    eventually(lambda: all_read(*reader.places), what="the others reading all")
    assert len(reader.places) == len(set(reader.places)), "the query read nothing twice"
