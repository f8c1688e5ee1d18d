"""A member of a consumer group with confluent-kafka, that is librdkafka. SIGTERM makes it leave the group."""

from __future__ import annotations

import logging
import signal
import threading
import time

import line
from confluent_kafka import Consumer, KafkaException, TopicPartition

Place = tuple[str, int]

log = logging.getLogger("member")


class Member:
    """One consumer. librdkafka calls the functions for its rebalances in ``poll``."""

    def __init__(self) -> None:
        self._consumer = Consumer(configuration(), logger=log)
        self._owned: set[Place] = set()
        self._read: dict[Place, int] = {}
        self._ends = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._ends.set())

    def run(self) -> None:
        """Until SIGTERM."""
        topics = line.items("topics")
        if line.SETTINGS.get("pattern"):
            topics = [f"^{line.SETTINGS['pattern']}$"]
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        commits_at = 0.0
        while not self._ends.is_set():
            record = self._consumer.poll(0.1)
            if record is not None and record.error():
                log.error("%s", record.error())
            elif record is not None:
                place = record.topic(), record.partition()
                line.read(*place, record.offset())
                self._read[place] = record.offset() + 1
            if time.monotonic() >= commits_at:
                self._commit()
                commits_at = time.monotonic() + line.COMMIT_EVERY_S
        self._commit()
        self._consumer.close()

    def _assigned(self, _: Consumer, more: list[TopicPartition]) -> None:
        self._owned |= {(each.topic, each.partition) for each in more}
        line.assigned(self._owned)

    def _revoked(self, _: Consumer, less: list[TopicPartition]) -> None:
        self._commit()
        self._lost(_, less)

    def _lost(self, _: Consumer, less: list[TopicPartition]) -> None:
        for each in less:
            self._owned.discard((each.topic, each.partition))
            self._read.pop((each.topic, each.partition), None)
        line.assigned(self._owned)

    def _commit(self) -> None:
        offsets, self._read = self._read, {}
        if not offsets:
            return
        try:
            wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            stored = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            log.info("commit: %s", error)
            self._read = offsets | self._read
            return
        for each in stored or ():
            line.committed(each.topic, each.partition, each.offset)


def configuration() -> dict[str, object]:
    """The configuration that the arguments describe."""
    chosen: dict[str, object] = {
        "bootstrap.servers": line.SETTINGS["servers"],
        "group.id": line.SETTINGS["group"],
        "client.id": line.SETTINGS["client"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1000,
    }
    assignor = line.SETTINGS.get("assignor", "")
    if line.SETTINGS.get("instance"):
        chosen["group.instance.id"] = line.SETTINGS["instance"]
    if line.SETTINGS.get("protocol") == "consumer":
        chosen["group.protocol"] = "consumer"
        if assignor:
            chosen["group.remote.assignor"] = assignor
        return chosen
    chosen["session.timeout.ms"] = int(line.SETTINGS["session"])
    chosen["heartbeat.interval.ms"] = 200
    if assignor:
        chosen["partition.assignment.strategy"] = assignor
    return chosen


logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
Member().run()
