"""One group of the fake cluster: its offsets, its members with either group protocol, and what is said of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from spark_group_source.offsets import TopicPartition, numbers_by_topic
from tests.fake.classic_group import EMPTY, ILLEGAL_GENERATION, STABLE, FakeClassicGroup, FakeMember, Removed
from tests.fake.consumer_group import UNKNOWN_GROUP, FakeConsumerGroup, FakeConsumerMember, assignment

CLASSIC, CONSUMER = "classic", "consumer"

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


@dataclass
class FakeGroup:
    """Offsets and leader epochs of one group, and its members.

    The fake does not convert a group with members from one protocol to the other: it refuses the other. ``kind`` is the
    protocol, empty as long as the group does not exist.
    """

    changed: threading.Condition
    removed: Removed
    offsets: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    kind: str = ""

    def __post_init__(self) -> None:
        self.classic = FakeClassicGroup(self.changed, self.removed)
        self.consumer = FakeConsumerGroup(self.removed)

    @property
    def members(self) -> dict[str, FakeMember | FakeConsumerMember]:
        return {**self.classic.members, **self.consumer.members}

    @property
    def empty(self) -> bool:
        """Whether it has no members, and the last ones' rebalance has ended."""
        return self.classic.state == EMPTY and not self.consumer.members

    def become(self, kind: str) -> None:
        """Makes an empty group one of this kind. Of one of the other kind only the offsets remain."""
        if self.kind != kind:
            self.kind = kind
            self.__post_init__()

    def advance(self, now: float) -> None:
        self.classic.advance(now)
        self.consumer.advance(now)

    def reload(self, now: float) -> None:
        """Becomes what the next coordinator reads. Sessions begin again at ``now``, when it has read the group."""
        self.classic.reload(now)
        self.consumer.reload(now)

    def expire(self, member_id: str, now: float) -> int:
        if member_id in self.consumer.members:
            self.consumer.remove(member_id, now, "session")
            return 0
        return self.classic.expire(member_id, now)

    def commit_error(self, request: Any) -> int:
        if self.kind == CONSUMER:
            return self.consumer.commit_error(request)
        if not self.kind and request.generation_id_or_member_epoch >= 0:
            return UNKNOWN_GROUP if request.version >= 9 else ILLEGAL_GENERATION
        return self.classic.commit_error(request)

    def describe(self, name: str, error_code: int) -> dict[str, Any]:
        """Returns the state and members of a classic group; ``Dead`` if it has neither members nor commits.

        To DescribeGroups a group with members of KIP-848 is dead too.
        """
        classic = self.classic
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
        exists = self.kind == CLASSIC or classic.members
        return {
            "error_code": error_code,
            "group_id": name,
            "group_state": classic.state if exists else "Dead",
            "protocol_type": classic.protocol_type if exists else "",
            "protocol_data": classic.protocol if classic.state == STABLE else "",
            "members": [] if error_code else members,
        }

    def describe_consumer(self, name: str, topics: Mapping[UUID, str], error_code: int) -> dict[str, Any]:
        """Returns the state and members of a group with the protocol of KIP-848, or that it does not exist."""
        group = self.consumer
        error_code = error_code or (0 if self.kind == CONSUMER else UNKNOWN_GROUP)
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

    def fetch_offsets(self, requested: Any, error_code: int) -> dict[str, Any]:
        """Returns the committed offsets of the requested partitions, or of all; -1 if a partition has no commit."""
        numbers_of: Mapping[str, Iterable[int]] = {}
        if not error_code and requested.topics is None:  # a request for all partitions
            numbers_of = numbers_by_topic(TopicPartition(*tp) for tp in self.offsets)
        elif not error_code:
            numbers_of = {topic.name: topic.partition_indexes for topic in requested.topics}

        def partition(name: str, number: int) -> dict[str, Any]:
            offset, text = self.offsets.get((name, number), (-1, ""))
            epoch = self.epochs.get((name, number), -1)
            committed = {"committed_offset": offset, "committed_leader_epoch": epoch, "metadata": text}
            return {"partition_index": number, "error_code": 0, **committed}

        topics = [
            {"name": name, "partitions": [partition(name, number) for number in numbers]}
            for name, numbers in numbers_of.items()
        ]
        return {"group_id": requested.group_id, "topics": topics, "error_code": error_code}
