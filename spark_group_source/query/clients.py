"""The Kafka clients of one thread: threads share no socket."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.group.offsets import GroupOffsets
from spark_group_source.group.settings import GroupSettings, Timings
from spark_group_source.wire.cluster import Cluster


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """One thread's clients for the logs and for the group's offsets."""

    cluster: Cluster
    offsets: GroupOffsets

    @classmethod
    def connect(cls, settings: GroupSettings, timings: Timings) -> KafkaClients:
        """Clients with connections of their own, which open on first use."""
        cluster = Cluster(settings.wire)
        return cls(cluster, GroupOffsets(cluster, settings, timings))
