"""Offset lookups at the leaders of partitions that start."""

from __future__ import annotations

from spark_group_source.clock import Deadline
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import list_offsets


class Leaders:
    """Returns the offsets of partitions whose leaders answer. ``epochs`` has the epochs of these leaders."""

    def __init__(self, cluster: Cluster, read_committed: bool, deadline: Deadline) -> None:
        self.epochs: dict[TopicPartition, int] = {}
        self._cluster = cluster
        self._read_committed = read_committed
        self._deadline = deadline

    def offsets(self, timestamps: Offsets) -> dict[TopicPartition, int]:
        """The offset of each partition at a timestamp, as :func:`list_offsets` returns it."""
        listed = list_offsets(
            self._cluster,
            timestamps,
            read_committed=self._read_committed,
            deadline=self._deadline,
            partial=True,  # partitions without an answer are looked up again
        )
        self.epochs |= listed.epochs
        return listed.offsets
