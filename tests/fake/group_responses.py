"""A coordinator's responses about a group's members and offsets. Pure, except that a commit sets offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka.protocol import admin, consumer

from spark_group_source.group.consumer_messages import ConsumerGroupDescribeResponse
from spark_group_source.offsets import TopicPartition, numbers_by_topic
from tests.fake.classic_group import STABLE
from tests.fake.consumer_group import UNKNOWN_GROUP
from tests.fake.group import CLASSIC, CONSUMER, FakeGroup

UNKNOWN_TOPIC, METADATA_TOO_LARGE, UNKNOWN_TOPIC_ID = 3, 12, 100

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """What a commit says of one partition, and the error code of its answer. An unknown topic has no id."""

    topic_id: UUID | None
    offset: int
    metadata: str
    epoch: int
    error: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One OffsetCommit request, and the error code of its response (0: accepted).

    ``partitions`` says which partitions were accepted: each has its own error code. ``at`` is the monotonic time.
    """

    group: str
    member_id: str
    generation: int
    offsets: dict[Partition, int]
    metadata: str
    error: int
    node: int
    at: float
    partitions: dict[Partition, PartitionCommit]


@dataclass(frozen=True, slots=True)
class Removal:
    """A member that the group lost at this monotonic time.

    ``why`` is "left", "session", "rebalance timeout", "replaced" (a static member) or "coordinator moved".
    """

    at: float
    group: str
    member_id: str
    why: str


def describe(name: str, group: FakeGroup, error_code: int) -> Any:
    """Returns the state and members of a classic group; ``Dead`` if it has neither members nor commits.

    To DescribeGroups a group with members of KIP-848 is dead too.
    """
    described_group = admin.DescribeGroupsResponse.DescribedGroup
    members = [
        described_group.DescribedGroupMember(
            version=5,
            member_id=each.id,
            group_instance_id=each.instance,
            client_id=each.client_id,
            client_host="/127.0.0.1",
            member_assignment=each.assignment,
        )
        for each in group.classic.members.values()
    ]
    exists = group.kind == CLASSIC or group.classic.members
    return described_group(
        version=5,
        error_code=error_code,
        group_id=name,
        group_state=group.classic.state if exists else "Dead",
        protocol_type=group.classic.protocol_type if exists else "",
        protocol_data=group.classic.protocol if group.classic.state == STABLE else "",
        members=[] if error_code else members,
    )


def describe_consumer(name: str, found: FakeGroup, topics: Mapping[UUID, str], error_code: int) -> Any:
    """Returns the state and members of a group with the protocol of KIP-848, or that it does not exist."""
    described_group = ConsumerGroupDescribeResponse.DescribedGroup
    group = found.consumer
    error_code = error_code or (0 if found.kind == CONSUMER else UNKNOWN_GROUP)
    if error_code:
        return described_group(version=1, error_code=error_code, group_id=name, group_state="", members=[])
    members = [
        described_group.Member(
            version=1,
            member_id=each.id,
            instance_id=each.instance,
            rack_id=each.rack,
            member_epoch=each.epoch,
            client_id=each.client_id,
            client_host="/127.0.0.1",
            subscribed_topic_names=sorted(each.topics),
            subscribed_topic_regex="",
            assignment=_assignment(each.assigned, topics),
            target_assignment=_assignment(group.target.get(each.id, frozenset()), topics),
            member_type=1,
        )
        for each in group.members.values()
    ]
    return described_group(
        version=1,
        group_id=name,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=members,
    )


def _assignment(partitions: Iterable[tuple[UUID, int]], topics: Mapping[UUID, str]) -> Any:
    assignment_of = ConsumerGroupDescribeResponse.DescribedGroup.Member.Assignment
    numbers = defaultdict[UUID, list[int]](list)
    for topic_id, number in sorted(partitions):
        numbers[topic_id].append(number)
    return assignment_of(
        version=1,
        topic_partitions=[
            assignment_of.TopicPartitions(
                version=1, topic_id=topic_id, topic_name=topics.get(topic_id, ""), partitions=numbers[topic_id]
            )
            for topic_id in numbers
        ],
    )


def commit(
    request: Any,
    group: FakeGroup,
    topics: Mapping[str, tuple[UUID, Collection[int]]],
    group_error: Callable[[], int],
    max_metadata: int,
) -> tuple[list[Any], dict[Partition, PartitionCommit], int]:
    """Sets the offsets of a valid commit; returns the topics of the response, what it commits, and the group's error.

    ``topics`` are those that the broker knows, with their ids and partitions. From version 10 on, the request has ids.
    The coordinator sees only partitions that exist, and nothing of a request without any.
    """
    error: int | None = None
    by_id = request.version >= 10
    names = {topic_id: name for name, (topic_id, _) in topics.items()} if by_id else {}
    commits: dict[Partition, PartitionCommit] = {}
    response_topic = consumer.OffsetCommitResponse.OffsetCommitResponseTopic
    response_topics = []
    for topic in request.topics:
        name = names.get(topic.topic_id, "") if by_id else topic.name
        topic_id, numbers = topics.get(name, (None, ()))
        identity = {"topic_id": topic.topic_id} if by_id else {"name": name}
        response = response_topic(version=request.version, partitions=[], **identity)
        for part in topic.partitions:
            tp, text = (name, part.partition_index), part.committed_metadata or ""
            if part.partition_index not in numbers:
                error_code = UNKNOWN_TOPIC_ID if by_id and not name else UNKNOWN_TOPIC
            else:
                error = group_error() if error is None else error
                error_code = error or (METADATA_TOO_LARGE if len(text) > max_metadata else 0)
            if not error_code:
                group.kind = group.kind or CLASSIC
                group.offsets[tp] = part.committed_offset, text
                group.epochs[tp] = part.committed_leader_epoch
            commits[tp] = PartitionCommit(
                topic_id, part.committed_offset, text, part.committed_leader_epoch, error_code
            )
            response.partitions.append(
                response_topic.OffsetCommitResponsePartition(
                    version=request.version, partition_index=part.partition_index, error_code=error_code
                )
            )
        response_topics.append(response)
    return response_topics, commits, error or 0


def fetch_offsets(requested: Any, group: FakeGroup, error_code: int) -> Any:
    """Returns the committed offsets of the requested partitions, or of all; -1 if a partition has no commit."""
    response_group = consumer.OffsetFetchResponse.OffsetFetchResponseGroup
    response_topic = response_group.OffsetFetchResponseTopics
    numbers_of: Mapping[str, Iterable[int]] = {}
    if not error_code and requested.topics is None:  # a request for all partitions
        numbers_of = numbers_by_topic(TopicPartition(*tp) for tp in group.offsets)
    elif not error_code:
        numbers_of = {topic.name: topic.partition_indexes for topic in requested.topics}
    topics = []
    for name, numbers in numbers_of.items():
        partitions = []
        for number in numbers:
            offset, text = group.offsets.get((name, number), (-1, ""))
            partitions.append(
                response_topic.OffsetFetchResponsePartitions(
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=group.epochs.get((name, number), -1),
                    metadata=text,
                    error_code=0,
                )
            )
        topics.append(response_topic(name=name, partitions=partitions))
    return response_group(group_id=requested.group_id, topics=topics, error_code=error_code)
