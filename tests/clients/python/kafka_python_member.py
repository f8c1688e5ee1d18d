"""A member of a consumer group with kafka-python, which commits by itself. SIGTERM makes it leave the group."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import line
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class Owned(ConsumerRebalanceListener):
    """What the member owns."""

    def __init__(self) -> None:
        self._owned: set[TopicPartition] = set()

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._owned -= set(revoked)
        line.assigned(self._owned)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._owned |= set(assigned)
        line.assigned(self._owned)


def confirmed(offsets: dict[TopicPartition, Any], answer: object) -> None:
    """Called after each commit."""
    if isinstance(answer, Exception):
        return
    for tp, offset in offsets.items():
        line.committed(*tp, offset.offset)


def consumer() -> KafkaConsumer:
    """The consumer that the arguments describe."""
    chosen: dict[str, Any] = {}
    if line.items("assignor"):
        chosen["partition_assignment_strategy"] = [ASSIGNORS[each] for each in line.items("assignor")]
    if line.SETTINGS.get("instance"):
        chosen["group_instance_id"] = line.SETTINGS["instance"]
    return KafkaConsumer(
        bootstrap_servers=line.items("servers"),
        group_id=line.SETTINGS["group"],
        client_id=line.SETTINGS["client"],
        auto_offset_reset="earliest",
        auto_commit_interval_ms=int(line.COMMIT_EVERY_S * 1000),
        default_offset_commit_callback=confirmed,
        session_timeout_ms=int(line.SETTINGS["session"]),
        heartbeat_interval_ms=200,
        metadata_max_age_ms=1000,
        **chosen,
    )


logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
ends = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ends.set())
member = consumer()
if line.SETTINGS.get("pattern"):
    member.subscribe(pattern=f"^{line.SETTINGS['pattern']}$", listener=Owned())
else:
    member.subscribe(line.items("topics"), listener=Owned())
while not ends.is_set():
    # A rebalance in it commits first, and logs an error if that takes longer than this call may.
    for tp, records in member.poll(timeout_ms=1000).items():
        for record in records:
            line.read(*tp, record.offset)
member.close()
