"""Whether a log still holds what it held under an earlier leader (KIP-320): OffsetForLeaderEpoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from spark_group_source.clock import Deadline
from spark_group_source.fetch.leaders import CONSUMER, ask, trouble
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic

UNDEFINED = -1
"""The end of an epoch that the leader has not heard of."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where an epoch ends in the log of the leader that has epoch ``leader``.

    An ``end`` before an offset that was read under the epoch means that the log was truncated there: what lies behind
    it now are other records. It is :data:`UNDEFINED` where this leader is older than the epoch.
    """

    leader: int
    end: int


def epoch_ends(
    cluster: Cluster, topics: Mapping[str, Topic], epochs: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, EpochEnd]:
    """Where the largest epoch that is at most the one given ends, by the leaders that ``topics`` name.

    What such a leader does not tell is left out: it does not answer, or another one has taken over since.

    Raises:
        TopicError: a topic may not be described.
    """
    leading = {tp: topics[tp.topic].epochs.get(tp.partition, UNKNOWN_EPOCH) for tp in epochs if tp.topic in topics}
    # Not asked for the same: metadata this old may name a leader that was deposed, and that would agree.
    found = {tp: EpochEnd(epoch, UNDEFINED) for tp, epoch in leading.items() if UNKNOWN_EPOCH < epoch < epochs[tp]}
    rest = {tp: epochs[tp] for tp in leading if tp not in found}
    answers, _ = ask(cluster, topics, rest, lambda part: _request(part, leading), deadline)
    for answer in answers:
        for topic in answer.topics:
            for told in topic.partitions:
                tp = TopicPartition(topic.topic, told.partition)
                if told.error_code:
                    trouble(tp, told.error_code)
                else:
                    found[tp] = EpochEnd(leading[tp], told.end_offset)
    return found


def _request(epochs: Offsets, leading: Mapping[TopicPartition, int]) -> Any:
    topic_of = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for tp, epoch in epochs.items():
        by_topic[tp.topic].append(
            topic_of.OffsetForLeaderPartition(
                version=versions.OFFSET_FOR_LEADER_EPOCH,
                partition=tp.partition,
                current_leader_epoch=leading[tp],
                leader_epoch=epoch,
            )
        )
    return OffsetForLeaderEpochRequest(
        version=versions.OFFSET_FOR_LEADER_EPOCH,
        replica_id=CONSUMER,
        topics=[
            topic_of(version=versions.OFFSET_FOR_LEADER_EPOCH, topic=name, partitions=parts)
            for name, parts in by_topic.items()
        ],
    )
