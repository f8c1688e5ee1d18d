"""What a query is subscribed to: topics by name, or all that match a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_group_source.clock import Deadline
from spark_group_source.wire.cluster import Cluster, Topic


@dataclass(frozen=True, slots=True)
class Subscription:
    """Either ``topics`` or ``pattern``. A pattern is searched for anywhere in a name, as Spark's own source does.

    Kafka's internal topics match only where ``internal`` is set.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    internal: bool = False

    def find(self, cluster: Cluster, deadline: Deadline) -> dict[str, Topic]:
        """The topics as the cluster has them now, by name; those that do not exist have an error or are left out.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        if self.pattern is None:
            return dict(cluster.metadata(self.topics, deadline).topics)
        matches = re.compile(self.pattern).search
        everything = cluster.metadata(None, deadline).topics
        return {
            name: topic for name, topic in everything.items() if matches(name) and (self.internal or not topic.internal)
        }

    def __str__(self) -> str:
        return f"pattern {self.pattern}" if self.pattern is not None else ", ".join(self.topics)
