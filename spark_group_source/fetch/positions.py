"""Positions in the logs: earliest, latest, or by time, asked of the partitions' leaders."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, describe
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupSourceError, ProtocolError, TopicError
from spark_group_source.fetch.errors import Remedy, remedy
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire import versions, waiting
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.metadata import Topic

ROUNDS = 4
"""Times that leaders are asked for before a partition counts as missing: brokers learn of new ones one by one."""

_CONSUMER = -1


def log_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    deadline: Deadline,
    missing: set[TopicPartition] | None = None,
) -> dict[TopicPartition, int]:
    """The offset of each partition at -2 (earliest), -1 (latest) or a timestamp in milliseconds: -1 for no such record.

    All leaders are asked before the first answer is waited for. Partitions whose leader moved are asked again. Those
    that the brokers still do not know after :data:`ROUNDS`, in two of them in a row, are added to ``missing`` and left
    out, where it is given; those whose leader does not answer are then left out as well, as long as some are found, and
    not waited for if none are: the caller asks again.

    Raises:
        TopicError: a topic may not be described, or is still unknown at the deadline and ``missing`` is not given.
        BrokerUnavailable, DeadlineExceeded: not all leaders answered in time, or none after the rounds.
    """
    found: dict[TopicPartition, int] = {}
    absent: set[TopicPartition] = set()
    unknown: set[TopicPartition] = set()
    troubles: dict[TopicPartition, GroupSourceError] = {}
    pause = cluster.options.retry_backoff
    for rounds in itertools.count(1):
        open_ones = {tp: at for tp, at in wanted.items() if tp not in found and tp not in absent}
        if not open_ones:
            break
        told = True
        try:
            troubles = _round(cluster, open_ones, rounds > 1, read_committed, deadline, found)
        except BrokerUnavailable:
            if not troubles:
                raise
            # Nobody told until the deadline who leads now: why that was asked is what there is to say.
            told = False
        # A broker that has just started knows nothing: one alone is not believed.
        before, unknown = unknown, _unknown(troubles)
        if missing is not None and told and rounds >= ROUNDS:
            absent |= unknown & before
            missing |= absent
        if not troubles.keys() - absent:
            continue
        enough = missing is not None and rounds >= ROUNDS and not unknown - absent
        if not told or deadline.remaining() <= pause or enough:
            # The next call asks for the leaders first: the one that did not answer may have been replaced.
            cluster.forget(tp.topic for tp in troubles)
            if missing is not None and found:
                break
            raise _unanswered(troubles, unknown_is_final=missing is None)
        waiting.pause(pause, deadline)
        pause = min(pause * 2, cluster.options.retry_backoff_max)
    return found


def _round(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    fresh: bool,
    read_committed: bool,
    deadline: Deadline,
    found: dict[TopicPartition, int],
) -> dict[TopicPartition, GroupSourceError]:
    """Asks every leader once, adds to ``found``; what went wrong, by partition.

    Those connected come first, and the others have a fair part of the time each, of which one is left for the answers:
    a leader that cannot be reached does not keep the others' from being taken.
    """
    topics = cluster.topics({tp.topic for tp in wanted}, deadline, fresh=fresh)
    by_leader, troubles = _by_leader(topics, wanted)
    asked: list[tuple[Connection, dict[TopicPartition, int]]] = []
    leaders = sorted(by_leader, key=cluster.connected, reverse=True)
    for left, leader in zip(range(len(leaders), 0, -1), leaders, strict=True):
        part = by_leader[leader]
        try:
            turn = deadline.at_most(deadline.remaining() / (left + bool(asked)))
            connection = cluster.connection(leader, turn)
            connection.send(_request(part, read_committed), deadline)
            asked.append((connection, part))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            troubles |= dict.fromkeys(part, error)
    for connection, part in asked:
        try:
            answer = connection.receive(deadline.at_most(cluster.options.request_timeout))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            troubles |= dict.fromkeys(part, error)
            continue
        _interpret(answer, found, troubles)
    return troubles


def _by_leader(
    topics: Mapping[str, Topic], wanted: Mapping[TopicPartition, int]
) -> tuple[dict[int, dict[TopicPartition, int]], dict[TopicPartition, GroupSourceError]]:
    """What each leader is to be asked, and the partitions that have none."""
    troubles: dict[TopicPartition, GroupSourceError] = {}
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for tp, at in wanted.items():
        topic = topics.get(tp.topic)
        leader = topic.partitions.get(tp.partition) if topic else None
        if leader is not None:
            by_leader[leader][tp] = at
        elif topic is not None and topic.error not in (0, UNKNOWN_TOPIC_OR_PARTITION):
            troubles[tp] = _trouble(tp, topic.error)
        elif topic is None or tp.partition not in topic.partitions:
            troubles[tp] = TopicError(f"{tp} does not exist.", "Check the topic.", errno=UNKNOWN_TOPIC_OR_PARTITION)
        else:
            troubles[tp] = BrokerUnavailable(f"{tp} has no leader.")
    return by_leader, troubles


def _request(wanted: Mapping[TopicPartition, int], read_committed: bool) -> Any:
    topic_of = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for tp, at in wanted.items():
        partition = topic_of.ListOffsetsPartition(
            version=versions.LIST_OFFSETS, partition_index=tp.partition, current_leader_epoch=-1, timestamp=at
        )
        by_topic[tp.topic].append(partition)
    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    return ListOffsetsRequest(
        version=versions.LIST_OFFSETS,
        replica_id=_CONSUMER,
        isolation_level=level,
        topics=[topic_of(version=versions.LIST_OFFSETS, name=t, partitions=p) for t, p in by_topic.items()],
    )


def _interpret(answer: Any, found: dict[TopicPartition, int], troubles: dict[TopicPartition, GroupSourceError]) -> None:
    for topic in answer.topics:
        for told in topic.partitions:
            tp = TopicPartition(topic.name, told.partition_index)
            if not told.error_code:
                found[tp] = told.offset
            else:
                troubles[tp] = _trouble(tp, told.error_code)


def _trouble(tp: TopicPartition, errno: int) -> GroupSourceError:
    """The error of one partition, to be tried again; raised where another try cannot help."""
    happened = f"The position of {tp} cannot be had: {describe(errno)}."
    if remedy(errno) is Remedy.NEW_LEADER and errno != UNKNOWN_TOPIC_OR_PARTITION:
        # Retriable also beyond the deadline: a query outlives an election, however long it takes.
        return BrokerUnavailable(happened)
    error = TopicError(
        happened,
        "Grant the principal DESCRIBE on the topic." if errno == TOPIC_AUTHORIZATION_FAILED else "Check the topic.",
        errno=errno,
    )
    if errno != UNKNOWN_TOPIC_OR_PARTITION:
        raise error
    return error


def _unknown(troubles: Mapping[TopicPartition, GroupSourceError]) -> set[TopicPartition]:
    return {
        tp for tp, each in troubles.items() if isinstance(each, TopicError) and each.errno == UNKNOWN_TOPIC_OR_PARTITION
    }


def _unanswered(troubles: Mapping[TopicPartition, GroupSourceError], unknown_is_final: bool) -> GroupSourceError:
    tp, trouble = next(iter(sorted(troubles.items())))
    if isinstance(trouble, TopicError) and unknown_is_final:
        return trouble
    more = f" (and {len(troubles) - 1} more partitions)" if len(troubles) > 1 else ""
    return DeadlineExceeded(f"The position of {tp}{more} was not told in time: {trouble.happened}")
