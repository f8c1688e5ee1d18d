"""One thread's clients: for the logs of the cluster, and for the commits of the group."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.group.commits import GroupOffsets
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.identity import ClusterIdentity


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """One thread's clients for the logs and for the group's offsets."""

    cluster: Cluster
    offsets: GroupOffsets

    @classmethod
    def connect(
        cls, settings: GroupSettings, timings: Timings, identity: ClusterIdentity | None = None
    ) -> KafkaClients:
        """Clients with connections of their own, which open on first use. All clients of one query share
        ``identity``."""
        cluster = Cluster(settings.wire, identity=identity)
        return cls(cluster, GroupOffsets(cluster, settings, timings))
