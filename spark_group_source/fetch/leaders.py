"""Requests about partitions to the leaders of these partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, describe
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupSourceError, ProtocolError, TopicError
from spark_group_source.fetch.errors import Remedy, remedy
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.metadata import Topic

CONSUMER = -1
"""The replica id of a client."""

Troubles = dict[TopicPartition, GroupSourceError]


def ask(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    wanted: Offsets,
    build: Callable[[Offsets], Any],
    deadline: Deadline,
) -> tuple[list[Any], Troubles]:
    """Asks every leader once; the answers, and what went wrong, by partition.

    All leaders are asked before the first answer is waited for. Those connected come first, and the others have a fair
    part of the time each, of which one is left for the answers: a leader that cannot be reached does not keep the
    others' from being taken.

    Args:
        wanted: what each partition is asked with, for ``build``, which makes the request to one leader.

    Raises:
        TopicError: a topic may not be described.
    """
    by_leader, troubles = _by_leader(topics, wanted)
    asked: list[tuple[Connection, dict[TopicPartition, int]]] = []
    answers = []
    leaders = sorted(by_leader, key=cluster.is_connected, reverse=True)
    for left, leader in zip(range(len(leaders), 0, -1), leaders, strict=True):
        part = by_leader[leader]
        try:
            turn = deadline.at_most(deadline.remaining() / (left + bool(asked)))
            connection = cluster.connection(leader, turn)
            connection.send(build(part), deadline)
            asked.append((connection, part))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            troubles |= dict.fromkeys(part, error)
    for connection, part in asked:
        try:
            answers.append(connection.receive(deadline.at_most(cluster.options.request_timeout)))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            troubles |= dict.fromkeys(part, error)
    return answers, troubles


def trouble(tp: TopicPartition, errno: int) -> GroupSourceError:
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


def _by_leader(topics: Mapping[str, Topic], wanted: Offsets) -> tuple[dict[int, dict[TopicPartition, int]], Troubles]:
    """What each leader is to be asked, and the partitions that have none."""
    troubles: Troubles = {}
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for tp, asked in wanted.items():
        topic = topics.get(tp.topic)
        leader = topic.partitions.get(tp.partition) if topic else None
        if leader is not None:
            by_leader[leader][tp] = asked
        elif topic is not None and topic.error not in (0, UNKNOWN_TOPIC_OR_PARTITION):
            troubles[tp] = trouble(tp, topic.error)
        elif topic is None or tp.partition not in topic.partitions:
            troubles[tp] = TopicError(f"{tp} does not exist.", "Check the topic.", errno=UNKNOWN_TOPIC_OR_PARTITION)
        else:
            troubles[tp] = BrokerUnavailable(f"{tp} has no leader.")
    return by_leader, troubles
