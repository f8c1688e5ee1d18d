"""OffsetForLeaderEpoch (KIP-320), which shows whether a log was truncated since an earlier leader epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import UnsupportedRequest
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition, topics_of
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import CONSUMER, partition_error, send_to_leaders
from spark_group_source.wire.metadata import Topic

UNDEFINED_EPOCH_OFFSET = -1
"""The end offset of an epoch that the leader does not know."""

UNCHECKED = 2**63 - 1
"""The end offset of an epoch at a leader that does not support the request: nothing can be compared with it."""


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The end offset of an epoch in the log of the leader with epoch ``leader_epoch``.

    If ``end_offset`` is before an offset that was read in the epoch, the log was truncated there, and later offsets
    have other records. It is :data:`UNDEFINED_EPOCH_OFFSET` if the leader is older than the epoch.
    """

    leader_epoch: int
    end_offset: int


def epoch_end_offsets(
    cluster: Cluster, topics: Mapping[str, Topic], epochs: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, EpochEndOffset]:
    """The end offset of the largest epoch up to the given one, from the leaders in ``topics``.

    A partition is left out if its leader does not answer, or is no longer the leader.

    Raises:
        TopicError: the principal may not describe a topic.
    """
    leader_epochs: dict[TopicPartition, int] = {}
    end_offsets: dict[TopicPartition, EpochEndOffset] = {}
    to_ask: dict[TopicPartition, int] = {}
    for tp, epoch in epochs.items():
        if tp.topic not in topics:
            continue
        leader_epoch = topics[tp.topic].epochs.get(tp.partition, UNKNOWN_EPOCH)
        leader_epochs[tp] = leader_epoch
        if UNKNOWN_EPOCH < leader_epoch < epoch:
            # The metadata is older than the epoch. The leader that it names may have been deposed, and would confirm
            # its own diverged log.
            end_offsets[tp] = EpochEndOffset(leader_epoch, UNDEFINED_EPOCH_OFFSET)
        else:
            to_ask[tp] = epoch
    responses, errors = send_to_leaders(
        cluster, topics, to_ask, lambda part: _leader_epoch_request(part, leader_epochs), deadline
    )
    for tp, error in errors.items():
        if isinstance(error, UnsupportedRequest):
            end_offsets[tp] = EpochEndOffset(leader_epochs[tp], UNCHECKED)
    end_offsets |= _end_offsets_in(responses, leader_epochs)
    return end_offsets


def current_epoch_end_offsets(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, EpochEndOffset]:
    """As :func:`epoch_end_offsets`, from the current leaders: requests the metadata first.

    Raises:
        BrokerUnavailable: no broker responded before the deadline.
        TopicError: as :func:`epoch_end_offsets`.
    """
    topics = cluster.topics(topics_of(epochs), deadline, fresh=True)
    return epoch_end_offsets(cluster, topics, epochs, deadline)


def _end_offsets_in(responses: Iterable[Any], leader_epochs: Offsets) -> dict[TopicPartition, EpochEndOffset]:
    """The end offsets in these responses, without the partitions that have a retriable error.

    Raises:
        TopicError: an error of a partition is not retriable.
    """
    end_offsets: dict[TopicPartition, EpochEndOffset] = {}
    for response in responses:
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic, partition.partition)
                if partition.error_code:
                    partition_error(tp, partition.error_code)  # raises if a retry cannot help
                else:
                    end_offsets[tp] = EpochEndOffset(leader_epochs[tp], partition.end_offset)
    return end_offsets


def _leader_epoch_request(epochs: Offsets, leader_epochs: Mapping[TopicPartition, int]) -> Any:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for tp, epoch in epochs.items():
        by_topic[tp.topic].append(
            topic_class.OffsetForLeaderPartition(
                partition=tp.partition, current_leader_epoch=leader_epochs[tp], leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=CONSUMER,
        topics=[topic_class(topic=name, partitions=partitions) for name, partitions in by_topic.items()],
    )
