"""Requests about partitions to their leaders: ListOffsets, and OffsetForLeaderEpoch (KIP-320), which shows whether a
log was truncated since an earlier leader epoch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetForLeaderEpochRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
    TopicError,
    UnsupportedRequest,
    describe_error_code,
)
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition
from spark_group_source.wire import waiting
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.stale_metadata import EveryBroker, unknown_to_all

CONSUMER = -1
"""The replica id of a consumer."""

HEALED_BY_NEW_METADATA = frozenset(
    {
        -1,  # UNKNOWN_SERVER_ERROR
        UNKNOWN_TOPIC_OR_PARTITION,
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
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
    purpose: str = "",
) -> tuple[list[Any], PartitionErrors]:
    """Sends one request to every leader; returns the responses, and the errors by partition.

    All requests are sent before the first response is read. Connected leaders come first. The time is divided between
    the others and the responses, so that an unreachable or throttled leader does not prevent the responses of others.

    Args:
        values: a value for each partition; ``build_request`` makes the request to one leader from its part.
        purpose: see :meth:`Cluster.connection`.

    Raises:
        TopicError: the principal may not describe a topic.
    """
    by_leader, errors = _group_by_leader(topics, values)
    sent: list[tuple[Connection, dict[TopicPartition, int]]] = []
    responses = []
    leaders = sorted(by_leader, key=lambda leader: (not cluster.is_connected(leader, purpose), leader))
    for left, leader in zip(range(len(leaders), 0, -1), leaders, strict=True):
        part = by_leader[leader]
        try:
            share = deadline.at_most(deadline.remaining() / (left + bool(sent)))
            connection = cluster.connection(leader, share, purpose)
            connection.send(build_request(part), share)
            sent.append((connection, part))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            errors |= dict.fromkeys(part, error)
    for connection, part in sent:
        try:
            responses.append(connection.receive(deadline.at_most(cluster.options.request_timeout)))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            errors |= dict.fromkeys(part, error)
    return responses, errors


def partition_error(tp: TopicPartition, error_code: int) -> GroupSourceError:
    """The error of one partition for a later retry; raises it if a retry cannot help."""
    happened = f"The offset lookup of {tp} failed: {describe_error_code(error_code)}."
    if error_code in HEALED_BY_NEW_METADATA and error_code != UNKNOWN_TOPIC_OR_PARTITION:
        # Retriable after the deadline too: a query survives an election, however long it takes.
        return BrokerUnavailable(happened)
    if error_code == UNKNOWN_TOPIC_OR_PARTITION:
        return TopicError(happened, _CHECK_TOPIC, error_code=error_code)
    unauthorized = error_code == TOPIC_AUTHORIZATION_FAILED
    action = "Grant the principal DESCRIBE on the topic." if unauthorized else "Check the log of the broker."
    raise TopicError(happened, action, error_code=error_code, topics=[tp.topic])


def _group_by_leader(
    topics: Mapping[str, Topic], values: Offsets
) -> tuple[dict[int, dict[TopicPartition, int]], PartitionErrors]:
    """The values by leader, and the errors of the partitions without a leader."""
    errors: PartitionErrors = {}
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for tp, value in values.items():
        topic = topics.get(tp.topic)
        leader = topic.partitions.get(tp.partition) if topic else None
        if leader is not None:
            by_leader[leader][tp] = value
        elif topic is not None and topic.error not in (0, UNKNOWN_TOPIC_OR_PARTITION):
            errors[tp] = partition_error(tp, topic.error)
        elif topic is None or tp.partition not in topic.partitions:
            errors[tp] = TopicError(f"{tp} does not exist.", _CHECK_TOPIC, error_code=UNKNOWN_TOPIC_OR_PARTITION)
        else:
            errors[tp] = BrokerUnavailable(f"{tp} has no leader.")
    return by_leader, errors


MIN_ATTEMPTS = 4
"""Attempts before a partition counts as missing: brokers learn of new partitions one after the other."""


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    deadline: Deadline,
    missing: set[TopicPartition] | None = None,
    epochs: dict[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """The offset of each partition at -2 (earliest), -1 (latest) or a timestamp in milliseconds: -1 for no such record.

    Partitions whose leader moved are retried. If ``missing`` is given, partitions that no broker knows are added to it
    and left out, after :data:`MIN_ATTEMPTS` and two attempts in a row without them. Partitions whose leader does not
    answer are then left out as well; if no partition has an answer, the call fails early, and the caller retries.
    ``epochs`` receives the leader epochs of the responses: for the latest offset, that of the leader that answered.

    Raises:
        TopicError: the principal may not describe a topic; or one is unknown at the deadline, without ``missing``.
        BrokerUnavailable, DeadlineExceeded: not all leaders answered in time, or none in the minimum attempts.
    """
    offsets: dict[TopicPartition, int] = {}
    absent: set[TopicPartition] = set()
    unknown: set[TopicPartition] = set()
    errors: PartitionErrors = {}
    epochs = {} if epochs is None else epochs
    backoff = cluster.options.retry_backoff
    for attempt in itertools.count(1):
        pending = {tp: at for tp, at in timestamps.items() if tp not in offsets and tp not in absent}
        if not pending:
            break
        have_metadata = True
        try:
            topics = _topics_of(cluster, pending, attempt > 1, bool(unknown), deadline)
            errors = _attempt(cluster, topics, pending, read_committed, deadline, offsets, epochs)
        except BrokerUnavailable:
            if not errors:
                raise
            # No broker sent new leaders until the deadline. The errors of the last attempt explain more.
            have_metadata = False
        # A broker that has just started knows no topics, so one response is not enough.
        last_unknown, unknown = unknown, _unknown_partitions(errors)
        if missing is not None and have_metadata and attempt >= MIN_ATTEMPTS:
            absent |= unknown_to_all(cluster, unknown & last_unknown, deadline)
            missing |= absent
        if not errors.keys() - absent:
            continue
        give_up = missing is not None and attempt >= MIN_ATTEMPTS and not unknown - last_unknown
        if not have_metadata or deadline.remaining() <= backoff or give_up:
            # The next call asks for the leaders first: a silent leader may have been replaced.
            cluster.invalidate_topics(tp.topic for tp in errors)
            if missing is not None and offsets:
                break
            raise _timeout_error(errors, unknown_is_final=missing is None)
        waiting.sleep(backoff, deadline)
        backoff = min(backoff * 2, cluster.options.retry_backoff_max)
    return offsets


def _topics_of(
    cluster: Cluster, partitions: Iterable[TopicPartition], fresh: bool, from_all: bool, deadline: Deadline
) -> Mapping[str, Topic]:
    """The topics of these partitions; ``from_all``: as any broker knows them, because one did not know them all."""
    topics = {tp.topic for tp in partitions}
    if from_all:
        return EveryBroker(cluster).metadata(topics, deadline).topics
    return cluster.topics(topics, deadline, fresh=fresh)


def _attempt(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    timestamps: Mapping[TopicPartition, int],
    read_committed: bool,
    deadline: Deadline,
    offsets: dict[TopicPartition, int],
    epochs: dict[TopicPartition, int],
) -> PartitionErrors:
    """Asks every leader once, and adds to ``offsets`` and ``epochs``; returns the errors."""
    responses, errors = send_to_leaders(
        cluster, topics, timestamps, lambda part: _list_offsets_request(part, read_committed), deadline
    )
    for response in responses:
        _interpret(response, offsets, epochs, errors)
    return errors


def _list_offsets_request(timestamps: Mapping[TopicPartition, int], read_committed: bool) -> Any:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for tp, timestamp in timestamps.items():
        partition = topic_class.ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp
        )
        by_topic[tp.topic].append(partition)
    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    return ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=level,
        topics=[topic_class(name=t, partitions=p) for t, p in by_topic.items()],
    )


def _interpret(
    response: Any, offsets: dict[TopicPartition, int], epochs: dict[TopicPartition, int], errors: PartitionErrors
) -> None:
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code:
                errors[tp] = partition_error(tp, partition.error_code)
            else:
                offsets[tp] = partition.offset
                if partition.offset >= 0:
                    epochs[tp] = partition.leader_epoch


def _unknown_partitions(errors: PartitionErrors) -> set[TopicPartition]:
    return {tp for tp, e in errors.items() if isinstance(e, TopicError) and e.error_code == UNKNOWN_TOPIC_OR_PARTITION}


def _timeout_error(errors: PartitionErrors, unknown_is_final: bool) -> GroupSourceError:
    tp, first = sorted(errors.items())[0]
    if isinstance(first, TopicError) and unknown_is_final:
        return first
    more = f" (and {len(errors) - 1} more partitions)" if len(errors) > 1 else ""
    return DeadlineExceeded(f"The offset lookup of {tp}{more} timed out: {first.happened}")


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
    leader_epochs = {
        tp: topics[tp.topic].epochs.get(tp.partition, UNKNOWN_EPOCH) for tp in epochs if tp.topic in topics
    }
    # The metadata is older than the epoch: its leader may be deposed, and would confirm its own log.
    end_offsets = {
        tp: EpochEndOffset(leader_epoch, UNDEFINED_EPOCH_OFFSET)
        for tp, leader_epoch in leader_epochs.items()
        if UNKNOWN_EPOCH < leader_epoch < epochs[tp]
    }
    to_ask = {tp: epochs[tp] for tp in leader_epochs if tp not in end_offsets}
    responses, errors = send_to_leaders(
        cluster, topics, to_ask, lambda part: _leader_epoch_request(part, leader_epochs), deadline
    )
    for tp in (tp for tp, error in errors.items() if isinstance(error, UnsupportedRequest)):
        end_offsets[tp] = EpochEndOffset(leader_epochs[tp], UNCHECKED)
    for response in responses:
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic, partition.partition)
                if partition.error_code:
                    partition_error(tp, partition.error_code)
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
