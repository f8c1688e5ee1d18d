"""A coordinator's responses about a group's members and offsets. Pure, except that a commit sets offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from spark_group_source.offsets import TopicPartition, numbers_by_topic
from tests.fake.classic_group import STABLE
from tests.fake.consumer_group import UNKNOWN_GROUP, assignment
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


def describe(name: str, group: FakeGroup, error_code: int) -> dict[str, Any]:
    """Returns the state and members of a classic group; ``Dead`` if it has neither members nor commits.

    To DescribeGroups a group with members of KIP-848 is dead too.
    """
    classic = group.classic
    members = [
        {
            "member_id": each.id,
            "group_instance_id": each.instance,
            "client_id": each.client_id,
            "client_host": "/127.0.0.1",
            "member_assignment": each.assignment,
        }
        for each in classic.members.values()
    ]
    exists = group.kind == CLASSIC or classic.members
    return {
        "error_code": error_code,
        "group_id": name,
        "group_state": classic.state if exists else "Dead",
        "protocol_type": classic.protocol_type if exists else "",
        "protocol_data": classic.protocol if classic.state == STABLE else "",
        "members": [] if error_code else members,
    }


def describe_consumer(name: str, found: FakeGroup, topics: Mapping[UUID, str], error_code: int) -> dict[str, Any]:
    """Returns the state and members of a group with the protocol of KIP-848, or that it does not exist."""
    group = found.consumer
    error_code = error_code or (0 if found.kind == CONSUMER else UNKNOWN_GROUP)
    if error_code:
        return {"error_code": error_code, "group_id": name, "group_state": "", "members": []}
    members = [
        {
            "member_id": each.id,
            "instance_id": each.instance,
            "rack_id": each.rack,
            "member_epoch": each.epoch,
            "client_id": each.client_id,
            "client_host": "/127.0.0.1",
            "subscribed_topic_names": sorted(each.topics),
            "subscribed_topic_regex": "",
            "assignment": assignment(each.assigned, topics),
            "target_assignment": assignment(group.target.get(each.id, frozenset()), topics),
            "member_type": 1,
        }
        for each in group.members.values()
    ]
    return {
        "group_id": name,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": members,
    }


def commit(
    request: Any,
    group: FakeGroup,
    topics: Mapping[str, tuple[UUID, Collection[int]]],
    group_error: Callable[[], int],
    max_metadata: int,
) -> tuple[list[dict[str, Any]], dict[Partition, PartitionCommit], int]:
    """Sets the offsets of a valid commit; returns the topics of the response, what it commits, and the group's error.

    ``topics`` are those that the broker knows, with their ids and partitions. From version 10 on, the request has ids.
    The coordinator sees only partitions that exist, and nothing of a request without any.
    """
    error: int | None = None
    by_id = request.version >= 10
    names = {topic_id: name for name, (topic_id, _) in topics.items()} if by_id else {}
    commits: dict[Partition, PartitionCommit] = {}
    response_topics: list[dict[str, Any]] = []
    for topic in request.topics:
        name = names.get(topic.topic_id, "") if by_id else topic.name
        topic_id, numbers = topics.get(name, (None, ()))
        identity: dict[str, Any] = {"topic_id": topic.topic_id} if by_id else {"name": name}
        response: list[dict[str, int]] = []
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
            response.append({"partition_index": part.partition_index, "error_code": error_code})
        response_topics.append({"partitions": response, **identity})
    return response_topics, commits, error or 0


def fetch_offsets(requested: Any, group: FakeGroup, error_code: int) -> dict[str, Any]:
    """Returns the committed offsets of the requested partitions, or of all; -1 if a partition has no commit."""
    numbers_of: Mapping[str, Iterable[int]] = {}
    if not error_code and requested.topics is None:  # a request for all partitions
        numbers_of = numbers_by_topic(TopicPartition(*tp) for tp in group.offsets)
    elif not error_code:
        numbers_of = {topic.name: topic.partition_indexes for topic in requested.topics}

    def partition(name: str, number: int) -> dict[str, Any]:
        offset, text = group.offsets.get((name, number), (-1, ""))
        epoch = group.epochs.get((name, number), -1)
        committed = {"committed_offset": offset, "committed_leader_epoch": epoch, "metadata": text}
        return {"partition_index": number, "error_code": 0, **committed}

    topics = [
        {"name": name, "partitions": [partition(name, number) for number in numbers]}
        for name, numbers in numbers_of.items()
    ]
    return {"group_id": requested.group_id, "topics": topics, "error_code": error_code}
