"""What a query is to read: topics by name, all that match a pattern, or single partitions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from spark_group_source.clock import Deadline
from spark_group_source.group.topic_view import TopicView
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic


@dataclass(frozen=True, slots=True)
class Subscription:
    """Either ``topics`` or ``pattern``. A pattern is searched for anywhere in a name, as Spark's own source does.

    Kafka's internal topics match only where ``internal`` is set. Where ``partitions`` are given, which lie in
    ``topics``, the topics are as if they had no others.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    internal: bool = False
    partitions: frozenset[TopicPartition] = frozenset()

    def matches(self, name: str) -> bool:
        """Whether it asks for a topic of this name."""
        return name in self.topics if self.pattern is None else re.search(self.pattern, name) is not None

    def find(self, cluster: Cluster | TopicView, deadline: Deadline) -> dict[str, Topic]:
        """The topics as the cluster has them now, by name; those that do not exist have an error or are left out.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        if self.pattern is None:
            return {name: self._only(topic) for name, topic in cluster.metadata(self.topics, deadline).topics.items()}
        everything = cluster.metadata(None, deadline).topics
        return {
            name: topic
            for name, topic in everything.items()
            if self.matches(name) and (self.internal or not topic.internal)
        }

    def _only(self, topic: Topic) -> Topic:
        if not self.partitions:
            return topic
        wanted = {tp.partition for tp in self.partitions if tp.topic == topic.name}
        return replace(topic, partitions={each: by for each, by in topic.partitions.items() if each in wanted})

    def __str__(self) -> str:
        return f"pattern {self.pattern}" if self.pattern is not None else ", ".join(self.topics)
