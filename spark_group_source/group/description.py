"""Describes a group with DescribeGroups, which needs no membership."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """``state`` is Kafka's name: Stable, PreparingRebalance, CompletingRebalance, Empty, or Dead if no group exists.

    ``assignor`` is the assignor that the group has chosen, empty if the group has no members.
    """

    state: str
    assignor: str
    members: tuple[MemberDescription, ...]


def interpret(group: Any) -> GroupDescription:
    """Reads one group of a DescribeGroups response; members are sorted by client id."""
    is_consumer = group.protocol_type == PROTOCOL_TYPE  # other protocol types encode assignments differently
    members = [
        MemberDescription(
            member.member_id,
            member.client_id,
            member.client_host.lstrip("/"),
            member.group_instance_id,
            decode_assignment(member.member_assignment or b"") if is_consumer else frozenset(),
        )
        for member in group.members
    ]
    ordered = tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))
    return GroupDescription(group.group_state or "", group.protocol_data or "", ordered)


def describe(client: CoordinatorClient, group_id: str, deadline: Deadline) -> GroupDescription | RequestFailed:
    """Returns the group's state and members; no members for a group with the protocol of KIP-848."""
    from kafka.protocol.admin import DescribeGroupsRequest  # takes 30 ms, which no join waits for

    request = DescribeGroupsRequest(
        version=versions.DESCRIBE_GROUPS, groups=[group_id], include_authorized_operations=False
    )
    response = client.call(request, deadline)
    if isinstance(response, RequestFailed):
        return response
    group = response.groups[0]
    return client.failure("DescribeGroups", group.error_code) if group.error_code else interpret(group)
