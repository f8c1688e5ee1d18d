"""Positions in the logs: earliest, latest, or by time, asked of the partitions' leaders."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupSourceError, TopicError
from spark_group_source.fetch.leaders import CONSUMER, ask, trouble
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire import versions, waiting
from spark_group_source.wire.cluster import Cluster

ROUNDS = 4
"""Times that leaders are asked for before a partition counts as missing: brokers learn of new ones one by one."""


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    deadline: Deadline,
    missing: set[TopicPartition] | None = None,
    epochs: dict[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """The offset of each partition at -2 (earliest), -1 (latest) or a timestamp in milliseconds: -1 for no such record.

    All leaders are asked before the first answer is waited for. Partitions whose leader moved are asked again. Those
    that the brokers still do not know after :data:`ROUNDS`, in two of them in a row, are added to ``missing`` and left
    out, where it is given; those whose leader does not answer are then left out as well, as long as some are found, and
    not waited for if none are: the caller asks again. The leader epochs of the answers are added to ``epochs``: with
    the latest offset that is the epoch of the leader that answers.

    Raises:
        TopicError: a topic may not be described, or is still unknown at the deadline and ``missing`` is not given.
        BrokerUnavailable, DeadlineExceeded: not all leaders answered in time, or none after the rounds.
    """
    found: dict[TopicPartition, int] = {}
    absent: set[TopicPartition] = set()
    unknown: set[TopicPartition] = set()
    troubles: dict[TopicPartition, GroupSourceError] = {}
    epochs = {} if epochs is None else epochs
    pause = cluster.options.retry_backoff
    for rounds in itertools.count(1):
        open_ones = {tp: at for tp, at in wanted.items() if tp not in found and tp not in absent}
        if not open_ones:
            break
        told = True
        try:
            troubles = _round(cluster, open_ones, rounds > 1, read_committed, deadline, found, epochs)
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
            cluster.invalidate_topics(tp.topic for tp in troubles)
            if missing is not None and found:
                break
            raise _unanswered(troubles, unknown_is_final=missing is None)
        waiting.sleep(pause, deadline)
        pause = min(pause * 2, cluster.options.retry_backoff_max)
    return found


def _round(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    fresh: bool,
    read_committed: bool,
    deadline: Deadline,
    found: dict[TopicPartition, int],
    epochs: dict[TopicPartition, int],
) -> dict[TopicPartition, GroupSourceError]:
    """Asks every leader once, adds to ``found`` and ``epochs``; what went wrong, by partition."""
    topics = cluster.topics({tp.topic for tp in wanted}, deadline, fresh=fresh)
    answers, troubles = ask(cluster, topics, wanted, lambda part: _request(part, read_committed), deadline)
    for answer in answers:
        _interpret(answer, found, epochs, troubles)
    return troubles


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
        replica_id=CONSUMER,
        isolation_level=level,
        topics=[topic_of(version=versions.LIST_OFFSETS, name=t, partitions=p) for t, p in by_topic.items()],
    )


def _interpret(
    answer: Any,
    found: dict[TopicPartition, int],
    epochs: dict[TopicPartition, int],
    troubles: dict[TopicPartition, GroupSourceError],
) -> None:
    for topic in answer.topics:
        for told in topic.partitions:
            tp = TopicPartition(topic.name, told.partition_index)
            if told.error_code:
                troubles[tp] = trouble(tp, told.error_code)
            else:
                found[tp], epochs[tp] = told.offset, told.leader_epoch


def _unknown(troubles: Mapping[TopicPartition, GroupSourceError]) -> set[TopicPartition]:
    return {
        tp for tp, each in troubles.items() if isinstance(each, TopicError) and each.errno == UNKNOWN_TOPIC_OR_PARTITION
    }


def _unanswered(troubles: Mapping[TopicPartition, GroupSourceError], unknown_is_final: bool) -> GroupSourceError:
    tp, first = next(iter(sorted(troubles.items())))
    if isinstance(first, TopicError) and unknown_is_final:
        return first
    more = f" (and {len(troubles) - 1} more partitions)" if len(troubles) > 1 else ""
    return DeadlineExceeded(f"The position of {tp}{more} was not told in time: {first.happened}")
