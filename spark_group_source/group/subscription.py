"""The topics of a query, by name or pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_group_source.clock import Deadline
from spark_group_source.offsets import TopicPartition

if TYPE_CHECKING:
    from spark_group_source.group.topic_view import TopicView
    from spark_group_source.wire.cluster import Cluster
    from spark_group_source.wire.metadata import Topic
    from spark_group_source.wire.stale_metadata import EveryBroker


@dataclass(frozen=True, slots=True)
class Subscription:
    """Either ``topics`` or ``pattern``. A pattern may match any part of a name, as in ``format("kafka")``.

    A pattern matches Kafka's internal topics only if ``internal`` is set. If ``partitions`` are set, they are in
    ``topics``, whose other partitions are ignored.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    internal: bool = False
    partitions: frozenset[TopicPartition] = frozenset()

    def matches(self, name: str) -> bool:
        """Whether the subscription includes a topic of this name."""
        if self.pattern is None:
            return name in self.topics
        return re.search(self.pattern, name) is not None

    def find(self, cluster: Cluster | TopicView | EveryBroker, deadline: Deadline) -> dict[str, Topic]:
        """Looks up the topics, by name; topics that do not exist have an error or are left out.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        if self.pattern is None:
            topics = cluster.metadata(self.topics, deadline).topics
            return {name: self._with_partitions(topic) for name, topic in topics.items()}
        found = {}
        for name, topic in cluster.metadata(None, deadline).topics.items():
            if topic.internal and not self.internal:
                continue
            if self.matches(name):
                found[name] = topic
        return found

    def _with_partitions(self, topic: Topic) -> Topic:
        if not self.partitions:
            return topic
        leaders = {}
        for number, leader in topic.partitions.items():
            if TopicPartition(topic.name, number) in self.partitions:
                leaders[number] = leader
        return replace(topic, partitions=leaders)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"pattern {self.pattern}"
        return ", ".join(self.topics)
