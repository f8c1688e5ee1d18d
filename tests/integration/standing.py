"""Records of a topic, and the progress of a group."""

from __future__ import annotations

import threading
from typing import Any

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.wire_options import WireOptions
from tests.integration.query_process import SESSION_MS, Place


def wire(kafka: EmbeddedKafka, client_id: str = "test", **more: Any) -> WireOptions:
    """Settings of a client of these brokers."""
    servers = [each.rsplit(":", 1) for each in kafka.bootstrap_servers.split(",")]
    return WireOptions(tuple((host, int(port)) for host, port in servers), client_id, **more)


def fill(kafka: EmbeddedKafka, topic: str, count: int) -> set[Place]:
    """Writes ``count`` records to each partition; returns their partitions and offsets."""
    places = set[Place]()
    for partition in kafka.end_offsets(topic):
        places.update(kafka.produce(topic, [f"value-{number}" for number in range(count)], partition=partition))
    return places


def places_in(kafka: EmbeddedKafka, topic: str) -> set[Place]:
    """Returns partition and offset of all records of a topic without deleted records."""
    return {(partition, offset) for partition, end in kafka.end_offsets(topic).items() for offset in range(end)}


def caught_up(kafka: EmbeddedKafka, topic: str, group: str) -> bool:
    """Whether the group has committed the end of every partition."""
    return kafka.committed(group, topic) == {(topic, tp): end for tp, end in kafka.end_offsets(topic).items()}


def partitions_per_member(kafka: EmbeddedKafka, group: str) -> list[int]:
    """Returns how many partitions each member owns, sorted; empty while the group rebalances."""
    stable = kafka.group_state(group) == "Stable"
    return sorted(each.partitions for each in kafka.members(group)) if stable else []


def shorten_sessions(kafka: EmbeddedKafka, group: str) -> None:
    """Gives members of this group with the protocol of KIP-848 the sessions of classic members in these tests."""
    from kafka.admin import ConfigResource, ConfigResourceType

    with kafka.admin() as admin:
        config = {"consumer.session.timeout.ms": f"{SESSION_MS}"}
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=config)])


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
