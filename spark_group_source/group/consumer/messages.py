"""The messages of KIP-848, which kafka-python 3.0 does not have: ConsumerGroupHeartbeat and ConsumerGroupDescribe.

kafka-python's message classes encode and decode them by the schemas in this directory. kafka-python finds the class of
a response by the API key of its request, so the responses have classes too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import new_class
from typing import Any
from uuid import UUID

from kafka.protocol.api_message import ApiMessage

from spark_group_source.group.consumer.states import ConsumerMembership, HeartbeatAnswered, Report, TopicIdPartition
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire import versions


def _message(name: str) -> Any:
    """Creates the class of one message from its schema, a file of this package."""
    return new_class(name, (ApiMessage,), {"load_json": __package__})


ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")


JOIN = 0
"""The epoch of a heartbeat that joins the group."""


LEAVE = -1
"""The epoch of a heartbeat that leaves the group."""


LEAVE_FOR_NOW = -2
"""The epoch of a static member's last heartbeat. If its next run joins before the session ends, it gets the same
partitions."""


def build_request(me: ConsumerMembership, settings: GroupSettings) -> Any:
    """Builds a heartbeat. It reports only what has changed since the last answer, or everything without such an answer.

    The instance id goes with every heartbeat: without it, the coordinator would not detect a fenced static member.
    """
    report, answered = me.report, me.answered
    request = _request(me, settings, max(JOIN, report.generation))
    if answered is None:
        request.rack_id = settings.wire.rack
        request.rebalance_timeout_ms = round(settings.rebalance_timeout * 1000)
        request.server_assignor = settings.remote_assignor
    if answered is None or answered.topics != report.topics:
        request.subscribed_topic_names = sorted(report.topics)
    if answered is None or answered.owned != report.owned:
        request.topic_partitions = _by_topic(report.owned)
    return request


def build_leave(me: ConsumerMembership, settings: GroupSettings) -> Any:
    """Builds the last heartbeat. A static member leaves temporarily, unless ``static_leaves`` is set."""
    if settings.instance_id is not None and not settings.static_leaves:
        return _request(me, settings, LEAVE_FOR_NOW)
    return _request(me, settings, LEAVE)


def _request(me: ConsumerMembership, settings: GroupSettings, epoch: int) -> Any:
    return ConsumerGroupHeartbeatRequest(
        version=versions.CONSUMER_GROUP_HEARTBEAT,
        group_id=settings.group_id,
        member_id=me.member_id,
        member_epoch=epoch,
        instance_id=settings.instance_id,
    )


def _by_topic(partitions: Iterable[TopicIdPartition]) -> list[Any]:
    numbers: dict[UUID, list[int]] = defaultdict(list)
    for topic_id, number in sorted(partitions):
        numbers[topic_id].append(number)
    return [
        ConsumerGroupHeartbeatRequest.TopicPartitions(
            version=versions.CONSUMER_GROUP_HEARTBEAT, topic_id=topic_id, partitions=partitions
        )
        for topic_id, partitions in numbers.items()
    ]


def interpret(response: Any, sent: Report, session_ends: float) -> HeartbeatAnswered:
    """Reads a response without an error, to the heartbeat with the report ``sent``."""
    assignment = None
    if response.assignment is not None:
        partitions: set[TopicIdPartition] = set()
        for topic in response.assignment.topic_partitions:
            partitions.update(TopicIdPartition(topic.topic_id, number) for number in topic.partitions)
        assignment = frozenset(partitions)
    return HeartbeatAnswered(
        sent, response.member_epoch, assignment, response.heartbeat_interval_ms / 1000, session_ends
    )
