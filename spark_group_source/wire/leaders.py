"""Requests about partitions to their leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
    TopicError,
    describe_error_code,
)
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.connections import LOOKUPS
from spark_group_source.wire.metadata import Topic

CONSUMER = -1
"""The replica id of a consumer."""

HEALED_BY_NEW_METADATA = frozenset(
    {
        -1,  # UNKNOWN_SERVER_ERROR
        2,  # CORRUPT_MESSAGE
        UNKNOWN_TOPIC_OR_PARTITION,
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        41,  # NOT_CONTROLLER
        56,  # KAFKA_STORAGE_ERROR
        72,  # LISTENER_NOT_FOUND
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
        89,  # THROTTLING_QUOTA_EXCEEDED
    }
)
"""Error codes of a partition after which a client asks for the leaders again and retries."""

_CHECK_TOPIC = "Check the name of the topic and its number of partitions."

PartitionErrors = dict[TopicPartition, GroupSourceError]


def send_to_leaders(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    values: Offsets,
    build_request: Callable[[Offsets], Any],
    deadline: Deadline,
    purpose: str = LOOKUPS,
) -> tuple[list[Any], PartitionErrors]:
    """Sends one request to every leader; returns the responses, and the errors by partition.

    All requests are sent before the first response is read, those to connected leaders first. Each leader in turn may
    take an equal share of the remaining time, and one share stays for the responses. So an unreachable or throttled
    leader does not prevent the responses of the others.

    Args:
        values: the number that ``build_request`` needs for each partition, for example a timestamp. ``build_request``
            gets the values of one leader's partitions.
        purpose: see :meth:`Cluster.connection`.

    Raises:
        TopicError: the principal may not describe a topic.
    """
    by_leader, errors = _group_by_leader(topics, values)
    sent: list[tuple[Connection, dict[TopicPartition, int]]] = []
    leaders = sorted(by_leader, key=lambda leader: (not cluster.is_connected(leader, purpose), leader))
    for tried, leader in enumerate(leaders):
        part = by_leader[leader]
        shares = len(leaders) - tried
        if sent:
            shares += 1  # for the responses
        try:
            share = deadline.share(shares)
            connection = cluster.connection(leader, share, purpose)
            connection.send(build_request(part), share)
            sent.append((connection, part))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            errors |= dict.fromkeys(part, error)
    responses, unanswered = _receive_each(sent, deadline, cluster.options.request_timeout)
    return responses, errors | unanswered


def _receive_each(
    sent: Iterable[tuple[Connection, Offsets]], deadline: Deadline, request_timeout: float
) -> tuple[list[Any], PartitionErrors]:
    """The responses to the requests that were sent over these connections, and the errors of the others' partitions."""
    responses = []
    errors: PartitionErrors = {}
    for connection, part in sent:
        try:
            responses.append(connection.receive(deadline.at_most(request_timeout)))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            errors |= dict.fromkeys(part, error)
    return responses, errors


def partition_error(tp: TopicPartition, error_code: int) -> GroupSourceError:
    """Returns the error of one partition if a retry may help; raises the error otherwise."""
    happened = f"The offset lookup of {tp} failed: {describe_error_code(error_code)}."
    if error_code == UNKNOWN_TOPIC_OR_PARTITION:
        return TopicError(happened, _CHECK_TOPIC, error_code=error_code)
    if error_code in HEALED_BY_NEW_METADATA:
        # Retriable even after the deadline: a query survives an election, however long it takes.
        return BrokerUnavailable(happened)
    action = "Check the log of the broker."
    if error_code == TOPIC_AUTHORIZATION_FAILED:
        action = "Grant the principal DESCRIBE on the topic."
    raise TopicError(happened, action, error_code=error_code, topics=[tp.topic])


def _group_by_leader(
    topics: Mapping[str, Topic], values: Offsets
) -> tuple[dict[int, dict[TopicPartition, int]], PartitionErrors]:
    """The values by leader, and the errors of the partitions without a leader."""
    errors: PartitionErrors = {}
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for tp, value in values.items():
        topic = topics.get(tp.topic)
        leader = None
        if topic is not None:
            leader = topic.partitions.get(tp.partition)
        if leader is None:
            errors[tp] = _without_leader(tp, topic)
        else:
            by_leader[leader][tp] = value
    return by_leader, errors


def _without_leader(tp: TopicPartition, topic: Topic | None) -> GroupSourceError:
    """The error of a partition without a leader in the metadata. Raises as :func:`partition_error`."""
    unknown = TopicError(f"{tp} does not exist.", _CHECK_TOPIC, error_code=UNKNOWN_TOPIC_OR_PARTITION)
    if topic is None:
        return unknown
    if topic.error not in (0, UNKNOWN_TOPIC_OR_PARTITION):
        return partition_error(tp, topic.error)
    if tp.partition not in topic.partitions:
        return unknown
    return BrokerUnavailable(f"{tp} has no leader.")
