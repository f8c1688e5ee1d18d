"""ListOffsets: the earliest offset of partitions, the latest, or that of a time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    TopicError,
)
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire import waiting
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import CONSUMER, PartitionErrors, partition_error, send_to_leaders
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.stale_metadata import EveryBroker, unknown_to_all

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
    answer are then left out as well; if nothing is known of any partition, the call fails early, and the caller retries.
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
            if missing is not None and (offsets or absent):
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
    for tp in timestamps:
        if tp not in offsets and tp not in errors:
            errors[tp] = BrokerUnavailable(f"The response of the leader of {tp} does not have the partition.")
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
