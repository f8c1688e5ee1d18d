"""One thread's way to Kafka: nothing of it is shared with another thread."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.wire.cluster import Cluster


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """One thread's way to the group and the logs."""

    cluster: Cluster
    offsets: GroupOffsets
