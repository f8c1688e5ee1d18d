"""Records of a topic, and the progress of a group."""

from __future__ import annotations

from spark_group_source.testing import EmbeddedKafka
from tests.integration.query_process import SESSION_MS, Place


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
