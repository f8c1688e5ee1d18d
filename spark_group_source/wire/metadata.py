"""Brokers, topics and leaders, as Metadata responses name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest

from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, BrokerUnavailable
from spark_group_source.offsets import UNKNOWN_EPOCH, Partitions, from_numbers, may_be_same
from spark_group_source.wire import versions
from spark_group_source.wire.reachability import Address

READ, DESCRIBE = 3, 8
"""Operations on a topic: org.apache.kafka.common.acl.AclOperation. READ implies DESCRIBE."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker and its address."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. ``id`` is empty if the broker reports none. ``partitions`` maps each partition number to its leader's
    id, or to ``None`` while it has no leader.

    ``error`` is Kafka's error code, or 0. ``may_read`` is whether this client may read the topic, if it asked for that
    and the broker said so. ``replicas`` maps each partition number to the ids of its brokers, and
    ``epochs`` to its leader epoch, if the broker reports it reliably.
    """

    name: str
    id: str
    partitions: Mapping[int, int | None]
    internal: bool = False
    error: int = 0
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)
    may_read: bool | None = None

    def part(self, numbers: Iterable[int]) -> Topic:
        """The same topic with only these partitions; leaves out numbers that the topic does not have."""
        leaders = {number: self.partitions[number] for number in numbers if number in self.partitions}
        replicas = {number: self.replicas[number] for number in leaders if number in self.replicas}
        epochs = {number: self.epochs[number] for number in leaders if number in self.epochs}
        return replace(self, partitions=leaders, replicas=replicas, epochs=epochs)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The brokers and topics of one Metadata response. ``answered_by`` is the broker that sent it, if that is known: a
    bootstrap server may be a load balancer."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    answered_by: int | None = None

    def racks(self, brokers: Iterable[int]) -> frozenset[str]:
        """Returns the racks of these brokers. Metadata leaves out a broker that is down, and so does this method."""
        racks: set[str] = set()
        for broker_id in brokers:
            broker = self.brokers.get(broker_id)
            if broker is not None and broker.rack is not None:
                racks.add(broker.rack)
        return frozenset(racks)


def partitions_of(topics: Iterable[Topic]) -> Partitions:
    """Returns all partitions of these topics."""
    return frozenset(from_numbers((topic.name, topic.partitions) for topic in topics))


def denied_topics(topics: Mapping[str, Topic]) -> set[str]:
    """The topics that this client may not describe."""
    return {name for name, topic in topics.items() if topic.error == TOPIC_AUTHORIZATION_FAILED}


def ids_of(topics: Mapping[str, Topic]) -> dict[str, str]:
    """The ids of those topics that exist; empty for brokers before Kafka 2.8."""
    return {name: topic.id for name, topic in topics.items() if not topic.error}


def merge(responses: Iterable[Mapping[str, Topic]]) -> dict[str, Topic]:
    """Every partition in any response, with the leader of the latest epoch. In all else, earlier responses take
    precedence."""
    merged: dict[str, Topic] = {}
    for topics in responses:
        for name, topic in topics.items():
            before = merged.get(name)
            if before is None:
                merged[name] = topic
            elif before.partitions:
                merged[name] = _with_partitions_of(topic, before)
            elif topic.partitions:
                merged[name] = topic
    return merged


def _with_partitions_of(topic: Topic, before: Topic) -> Topic:
    """``before``, with those partitions of ``topic`` that ``before`` lacks or has with an earlier leader epoch."""
    partitions, replicas, epochs = dict(before.partitions), dict(before.replicas), dict(before.epochs)
    # The epochs of a former topic say nothing about the recreated topic.
    same_topic = may_be_same(topic.id, before.id)
    for number, leader in topic.partitions.items():
        epoch = topic.epochs.get(number, UNKNOWN_EPOCH)
        is_later = same_topic and epoch > before.epochs.get(number, UNKNOWN_EPOCH)
        if number in before.partitions and not is_later:
            continue
        partitions[number] = leader
        if number in topic.replicas:
            replicas[number] = topic.replicas[number]
        if number in topic.epochs:
            epochs[number] = topic.epochs[number]
    return replace(before, partitions=partitions, replicas=replicas, epochs=epochs)


def permissions_of(topics: Mapping[str, Topic]) -> dict[str, bool]:
    """Whether this client may read each of these topics. Leaves out topics whose broker reports no permissions, as
    brokers before Kafka 2.3 do."""
    return {name: topic.may_read for name, topic in topics.items() if topic.may_read is not None}


def build_request(topics: Collection[str] | None, *, with_permissions: bool = False) -> Any:
    """Builds the request for these topics, or for all topics; the request never creates a topic.

    Args:
        with_permissions: brokers from Kafka 2.3 on also return what this client may do with each topic (KIP-430).
    """
    requested = None
    if topics is not None:
        requested = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
    return MetadataRequest(
        topics=requested, allow_auto_topic_creation=False, include_topic_authorized_operations=with_permissions
    )


def brokers_of(response: Any) -> dict[int, Broker]:
    """The brokers by id, from kafka-python's response."""
    return {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in response.brokers}


def advertiser(brokers: Iterable[Broker], address: Address) -> int | None:
    """The id of the broker that advertises an address; ``None`` if no broker does, or more than one."""
    advertising = [broker.id for broker in brokers if (broker.host, broker.port) == address]
    if len(advertising) != 1:
        return None
    return advertising[0]


def check_response(response: Any) -> None:
    """Rejects the response of a broker that has just started and does not know the cluster or any topic yet.

    Raises:
        BrokerUnavailable: the response names no brokers, not even its sender.
    """
    if not response.brokers:
        raise BrokerUnavailable("A broker that has just started reports no brokers and topics yet.")


def parse_response(response: Any) -> Metadata:
    """Converts kafka-python's response."""
    with_epochs = response.version >= versions.RELIABLE_EPOCHS
    return Metadata(brokers_of(response), {each.name: _topic(each, with_epochs) for each in response.topics})


_NO_ID = UUID(int=0)


def _topic(topic: Any, with_epochs: bool) -> Topic:
    topic_id = str(topic.topic_id)
    if topic.topic_id in (None, _NO_ID):
        topic_id = ""
    leaders: dict[int, int | None] = {}
    replicas: dict[int, Sequence[int]] = {}
    epochs: dict[int, int] = {}
    for each in topic.partitions:
        number = each.partition_index
        leaders[number] = None
        if each.leader_id >= 0:
            leaders[number] = each.leader_id
        replicas[number] = each.replica_nodes
        if with_epochs:
            epochs[number] = each.leader_epoch
    return Topic(topic.name, topic_id, leaders, topic.is_internal, topic.error_code, replicas, epochs, _may_read(topic))


def _may_read(topic: Any) -> bool | None:
    if topic.error_code == TOPIC_AUTHORIZATION_FAILED:
        return False
    operations = topic.authorized_operations
    if topic.error_code or not operations or DESCRIBE not in operations:
        return None
    return READ in operations
