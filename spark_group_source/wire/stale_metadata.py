"""What a broker says of topics may be old: what several brokers say of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
)
from spark_group_source.offsets import TopicPartition, may_be_same
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster, Metadata, Topic

log = logging.getLogger(__name__)


def metadata_from_each(
    cluster: Cluster, topics: Collection[str] | None, deadline: Deadline
) -> Iterator[tuple[int, Metadata | GroupSourceError]]:
    """Asks each broker for the metadata of these topics, or of all; yields its id, and its answer or error.

    The time is divided between the brokers that are left, so that one that does not answer leaves time for the others.
    """
    brokers = cluster.broker_ids()
    for left, broker in zip(range(len(brokers), 0, -1), brokers, strict=True):
        answer: Metadata | GroupSourceError
        try:
            answer = cluster.metadata_from(broker, topics, deadline.at_most(deadline.remaining() / left))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            answer = error
        yield broker, answer


def unknown_to_all(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline, ids: Mapping[str, str] | None = None
) -> set[TopicPartition]:
    """Those partitions that no broker knows: they were deleted, or their topic was recreated under another id.

    One broker may lag behind for long, so each has to answer. A caller that has no position yet leaves out ``ids``.
    """
    unknown = set(partitions)
    answers = metadata_from_each(cluster, {tp.topic for tp in unknown}, deadline) if unknown else ()
    for broker, answer in answers:
        if not isinstance(answer, Metadata):
            log.info("broker %d does not say whether %s exist: %s", broker, names(unknown), answer)
            return set()
        unknown = {tp for tp in unknown if not _knows(answer.topics.get(tp.topic), tp, (ids or {}).get(tp.topic, ""))}
    return unknown if cluster.broker_ids() else set()


def _knows(topic: Topic | None, tp: TopicPartition, topic_id: str) -> bool:
    if (
        topic is None
        or topic.error == UNKNOWN_TOPIC_OR_PARTITION
        or (not topic.error and not may_be_same(topic_id, topic.id))
    ):
        return False
    return bool(topic.error) or tp.partition in topic.partitions


def known_ids(cluster: Cluster, topics: Collection[str], deadline: Deadline) -> set[tuple[str, str]]:
    """The names of these topics, each with every id under which a broker knows it."""
    answers = metadata_from_each(cluster, topics, deadline)
    known = [answer.topics.values() for _, answer in answers if isinstance(answer, Metadata)]
    return {(topic.name, topic.id) for each in known for topic in each if not topic.error}


class EveryBroker:
    """The metadata of all brokers that answer, merged: for decisions that are made once, because one broker may lag."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def metadata(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        """As :meth:`Cluster.metadata`; a topic is unknown only if no broker knows it."""
        first = self._cluster.metadata(wanted, deadline)
        answers = [answer for _, answer in metadata_from_each(self._cluster, wanted, deadline)]
        others = [answer.topics for answer in answers if isinstance(answer, Metadata)]
        return replace(first, topics=merge([first.topics, *others]))


def merge(responses: Iterable[Mapping[str, Topic]]) -> dict[str, Topic]:
    """Every partition of any response; earlier responses take precedence."""
    merged: dict[str, Topic] = {}
    for topics in responses:
        for name, topic in topics.items():
            before = merged.get(name)
            if before is None or not before.partitions:
                merged[name] = topic if topic.partitions or before is None else before
            else:
                merged[name] = replace(
                    before,
                    partitions={**topic.partitions, **before.partitions},
                    replicas={**topic.replicas, **before.replicas},
                )
    return merged
