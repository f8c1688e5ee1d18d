"""ConsumerGroupHeartbeat as request and response: the changes of a report, and what the coordinator answers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from spark_group_source.group.consumer.events import HeartbeatAnswered, Report, TopicIdPartition
from spark_group_source.group.consumer.handshake import ConsumerMembership
from spark_group_source.group.consumer.messages import ConsumerGroupHeartbeatRequest
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire import versions

JOIN = 0
"""The epoch of a heartbeat that joins the group."""

LEAVE = -1
"""The epoch of a heartbeat that leaves the group."""

LEAVE_FOR_NOW = -2
"""The epoch of a static member's last heartbeat: its next run gets the same partitions, within the session."""


def build_request(me: ConsumerMembership, settings: GroupSettings) -> Any:
    """Builds a heartbeat that reports everything to a new coordinator, and to another only what has changed.

    The instance id goes with every heartbeat: without it, the coordinator would not notice a fenced static member.
    """
    report, answered = me.report, me.answered
    request = _request(me, settings, max(JOIN, report.generation))
    if answered is None:
        request.rack_id = settings.rack
        request.rebalance_timeout_ms = round(settings.rebalance_timeout * 1000)
        request.server_assignor = settings.remote_assignor
    if answered is None or answered.topics != report.topics:
        request.subscribed_topic_names = sorted(report.topics)
    if answered is None or answered.owned != report.owned:
        request.topic_partitions = _by_topic(report.owned)
    return request


def build_leave(me: ConsumerMembership, settings: GroupSettings) -> Any:
    """Builds the last heartbeat. A static member leaves for now, unless it is to leave with its query."""
    for_now = settings.instance_id is not None and not settings.static_leaves
    return _request(me, settings, LEAVE_FOR_NOW if for_now else LEAVE)


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
    """Reads the response to the heartbeat with the report ``sent``, a response without an error."""
    assignment = None
    if response.assignment is not None:
        assignment = frozenset(
            TopicIdPartition(topic.topic_id, number)
            for topic in response.assignment.topic_partitions
            for number in topic.partitions
        )
    return HeartbeatAnswered(
        sent, response.member_epoch, assignment, response.heartbeat_interval_ms / 1000, session_ends
    )
