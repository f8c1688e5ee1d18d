"""What a query has logged of partitions that start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import OffsetRange, Offsets, Partitions, TopicPartition
from spark_group_source.query.starts.pinned import PinnedStarts


class LoggedOffsets(NamedTuple):
    """What a query knows of partitions that start.

    Attributes:
        ranges: the ranges that were planned last, or the offsets to which records that were lost moved it.
        given_up: the beginnings of the batches in which it gave partitions up.
        replaced: commits that were there when it began the lineage of the range, while none of its own has arrived.
        recreated: partitions of topics that were recreated since it logged or pinned them. The group's commits are in
            the new ones: Kafka deletes those of a deleted topic.
        checkpoint: the id of the checkpoint; empty if no logged batch has one.
        pinned: the pinned starts of the others, as of the same moment: a batch that is logged takes them away.
    """

    ranges: dict[TopicPartition, OffsetRange]
    given_up: Offsets
    replaced: Mapping[TopicPartition, CommittedOffset]
    recreated: Partitions
    pinned: PinnedStarts
    checkpoint: str
