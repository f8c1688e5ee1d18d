"""A leader's response to OffsetForLeaderEpoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochResponse

from tests.fake.group_responses import UNKNOWN_TOPIC
from tests.fake.log import NOT_LEADER, FakeLog


def epoch_ends(requested: Any, logs: Mapping[int, FakeLog], node: int) -> Any:
    """Returns where epochs end in the logs of one topic, if broker ``node`` leads them."""
    result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    partitions = []
    for part in requested.partitions:
        log = logs.get(part.partition)
        epoch, end = -1, -1
        if log is None or log.leader != node:
            error_code = UNKNOWN_TOPIC if log is None else NOT_LEADER
        elif not (error_code := log.epoch_error(part.current_leader_epoch)):
            epoch, end = log.epoch_end(part.leader_epoch)
        partitions.append(
            result.EpochEndOffset(
                version=4, partition=part.partition, error_code=error_code, leader_epoch=epoch, end_offset=end
            )
        )
    return result(version=4, topic=requested.topic, partitions=partitions)
