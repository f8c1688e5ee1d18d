"""What a leader answers to OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochResponse

from spark_group_source.testing.fake.group_answers import UNKNOWN_TOPIC
from spark_group_source.testing.fake.log import NOT_LEADER, FakeLog


def ends(asked: Any, logs: Mapping[int, FakeLog], node: int) -> Any:
    """Where epochs end in the logs of one topic, as broker ``node`` knows them."""
    topic_of = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    parts = []
    for part in asked.partitions:
        log = logs.get(part.partition)
        epoch, end = -1, -1
        if log is None or log.leader != node:
            errno = UNKNOWN_TOPIC if log is None else NOT_LEADER
        elif not (errno := log.fenced(part.current_leader_epoch)):
            epoch, end = log.end_of(part.leader_epoch)
        parts.append(
            topic_of.EpochEndOffset(
                version=4, partition=part.partition, error_code=errno, leader_epoch=epoch, end_offset=end
            )
        )
    return topic_of(version=4, topic=asked.topic, partitions=parts)
