"""A group as its coordinator describes it to anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest

from spark_group_source.clock import Deadline
from spark_group_source.group.classic.assignment import decode_assignment
from spark_group_source.group.coordinator_client import CoordinatorClient
from spark_group_source.group.events import RequestFailed
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire import versions

PROTOCOL_TYPE = "consumer"
STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member; ``partitions`` is empty while the group rebalances."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """``state`` is Kafka's word: Stable, PreparingRebalance, CompletingRebalance, Empty, or Dead where there is none.

    ``assignor`` is the one that the group has chosen, empty where it has no members.
    """

    state: str
    assignor: str
    members: tuple[MemberDescription, ...]


def interpret(group: Any) -> GroupDescription:
    """One group of a DescribeGroups answer; members sorted by client id."""
    of_consumers = group.protocol_type == PROTOCOL_TYPE  # other kinds of groups have assignments of another form
    members = [
        MemberDescription(
            each.member_id,
            each.client_id,
            each.client_host.lstrip("/"),
            each.group_instance_id,
            decode_assignment(each.member_assignment or b"") if of_consumers else frozenset(),
        )
        for each in group.members
    ]
    ordered = tuple(sorted(members, key=lambda each: (each.client_id, each.member_id)))
    return GroupDescription(group.group_state or "", group.protocol_data or "", ordered)


def describe(channel: CoordinatorClient, group_id: str, deadline: Deadline) -> GroupDescription | RequestFailed:
    """State and members of the group.

    Of a group of Kafka 4's own protocol (KIP-848) this request tells none.
    """
    request = DescribeGroupsRequest(
        version=versions.DESCRIBE_GROUPS, groups=[group_id], include_authorized_operations=False
    )
    answer = channel.call(request, deadline)
    if isinstance(answer, RequestFailed):
        return answer
    group = answer.groups[0]
    return channel.refused("DescribeGroups", group.error_code) if group.error_code else interpret(group)
