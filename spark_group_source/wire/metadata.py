"""What brokers tell of their cluster: the brokers, topics, and who leads each partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from spark_group_source.errors import BrokerUnavailable
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.wire import versions


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker, where it can be reached."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``partitions`` maps each number to its leader's id, ``None`` where there is no leader now.

    ``error`` is Kafka's error code, 0 where all is well. ``replicas`` maps each number to the ids of its brokers, and
    ``epochs`` to its leader epoch.
    """

    name: str
    id: str
    partitions: Mapping[int, int | None]
    internal: bool = False
    error: int = 0
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a broker told of the cluster."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)

    def racks(self, brokers: Iterable[int]) -> frozenset[str]:
        """The racks of these brokers. A broker that is down is not known, and has none."""
        known = (self.brokers[each].rack for each in brokers if each in self.brokers)
        return frozenset(rack for rack in known if rack is not None)


def partitions_of(topics: Iterable[Topic]) -> Partitions:
    """All partitions of these topics."""
    return frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


def build(topics: Collection[str] | None) -> Any:
    """The request for these topics, or for all; it creates none."""
    wanted = None
    if topics is not None:
        topic_of = MetadataRequest.MetadataRequestTopic
        wanted = [topic_of(version=versions.METADATA, name=name) for name in sorted(topics)]
    return MetadataRequest(
        version=versions.METADATA,
        topics=wanted,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def check(answer: Any) -> None:
    """Refuses what a broker says that has just started, and has not learned of the cluster: it knows no topic either.

    Raises:
        BrokerUnavailable: it names no brokers, not even itself.
    """
    if not answer.brokers:
        raise BrokerUnavailable("A broker that has just started tells of no brokers and topics yet.")


def interpret(answer: Any) -> Metadata:
    """What the answer says."""
    return Metadata(
        {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in answer.brokers},
        {each.name: _topic(each) for each in answer.topics},
    )


def _topic(told: Any) -> Topic:
    return Topic(
        told.name,
        str(told.topic_id),
        {each.partition_index: each.leader_id if each.leader_id >= 0 else None for each in told.partitions},
        told.is_internal,
        told.error_code,
        {each.partition_index: each.replica_nodes for each in told.partitions},
        {each.partition_index: each.leader_epoch for each in told.partitions},
    )
