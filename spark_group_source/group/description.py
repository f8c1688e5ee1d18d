"""Describes a group of either group protocol, without joining it.

A coordinator describes a classic group only in response to DescribeGroups, and a group with the protocol of KIP-848
only in response to ConsumerGroupDescribe. For a group of the other protocol, both responses say that no such group
exists: DescribeGroups with the state Dead, ConsumerGroupDescribe with GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafka.protocol.api_key import ApiKey

from spark_group_source.clock import Deadline
from spark_group_source.errors import GROUP_ID_NOT_FOUND, TOPIC_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, ProtocolError
from spark_group_source.group.classic.assignment import JoinedMember, decode_assignment, subscribed_topics
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.membership import RequestFailed
from spark_group_source.offsets import Partitions, TopicPartition, from_numbers
from spark_group_source.text import printable, some
from spark_group_source.wire import versions

PROTOCOL_TYPE = "consumer"
"""The type of all groups of consumers, whatever their group protocol."""

CLASSIC, CONSUMER = "classic", "consumer"
"""The group protocols, with the names that ``kafka.group.protocol`` has for them."""

DEAD = "Dead"
STABLE = "Stable"
REBALANCING = {"PreparingRebalance", "CompletingRebalance"}
"""The states in which a classic group names neither its assignor nor the partitions of its members."""

UNKNOWN = "Unknown"
"""Kafka's name for a state that a broker does not report."""

_CLASSIC_MEMBER = 0


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member.

    Attributes:
        host: where it connects from, as the coordinator writes it: ``/10.0.0.1`` in Kafka.
        partitions: the assigned partitions; empty while a classic group rebalances.
        topics: the topics of its subscription; empty while a classic group rebalances.
        pattern: the pattern by which the brokers find its topics; empty if it has none.
        protocol: its group protocol, ``classic`` or ``consumer``.
        epoch: its member epoch; ``None`` in a classic group.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: Partitions = frozenset()
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    protocol: str = CLASSIC
    epoch: int | None = None

    @property
    def address(self) -> str:
        """The host without the slash, for messages."""
        return self.host.lstrip("/")


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members.

    Attributes:
        state: Kafka's name. Groups of both protocols may be Stable, Empty, or Dead if no group exists. A classic group
            may also be PreparingRebalance or CompletingRebalance, a group with KIP-848 Assigning or Reconciling.
        assignor: the assignor that the group has chosen; empty if a classic group has no members.
        members: sorted by client id.
        protocol: ``consumer`` if the group has the group protocol of KIP-848. Such a group may have classic members.
        members_hidden: whether the group has members, and ``members`` is empty because this principal may not describe
            all of their topics. The state is then Unknown. Only groups with KIP-848 have hidden members.
        protocol_type: ``consumer``, or another type of members, such as ``connect`` in Kafka Connect.
    """

    state: str
    assignor: str
    members: tuple[MemberDescription, ...]
    protocol: str = CLASSIC
    members_hidden: bool = False
    protocol_type: str = PROTOCOL_TYPE

    @property
    def clients(self) -> str:
        """The number of members, with client id and host of the first ones, for messages."""
        places = [f"{member.client_id} at {member.address}" for member in self.members]
        return f"{len(places)} member(s): {some(places, most=10)}"


def describe(client: CoordinatorClient, group_id: str, deadline: Deadline) -> GroupDescription | RequestFailed:
    """Returns the group's state and members. If no group exists, its state is Dead."""
    from kafka.protocol.admin import DescribeGroupsRequest  # takes 30 ms, which no join waits for

    request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
    response = client.call(request, deadline)
    if isinstance(response, RequestFailed):
        return response
    group = response.groups[0]
    if group.error_code:
        return client.failure("DescribeGroups", group.error_code)
    described = interpret(group)
    if described.state != DEAD:
        return described
    if not client.supports(ApiKey.ConsumerGroupDescribe, versions.CONSUMER_GROUP_DESCRIBE):
        return described
    found = _describe_consumer_group(client, group_id, deadline)
    if found is None:
        return described
    return found


def _describe_consumer_group(
    client: CoordinatorClient, group_id: str, deadline: Deadline
) -> GroupDescription | RequestFailed | None:
    """Returns ``None`` if no group with the protocol of KIP-848 has this id."""
    from spark_group_source.group.consumer.messages import ConsumerGroupDescribeRequest  # most groups are classic

    request = ConsumerGroupDescribeRequest(
        version=versions.CONSUMER_GROUP_DESCRIBE, group_ids=[group_id], include_authorized_operations=False
    )
    response = client.call(request, deadline)
    if isinstance(response, RequestFailed):
        return response
    group = response.groups[0]
    if group.error_code in (GROUP_ID_NOT_FOUND, UNSUPPORTED_VERSION):
        return None
    if group.error_code == TOPIC_AUTHORIZATION_FAILED:
        return GroupDescription(UNKNOWN, "", (), CONSUMER, members_hidden=True)
    if group.error_code:
        return client.failure("ConsumerGroupDescribe", group.error_code)
    return interpret_consumer_group(group)


def interpret(group: Any) -> GroupDescription:
    """Reads one group of a DescribeGroups response."""
    is_consumer = group.protocol_type == PROTOCOL_TYPE  # other protocol types encode assignments differently
    members = []
    for member in group.members:
        partitions: Partitions = frozenset()
        topics: frozenset[str] = frozenset()
        if is_consumer:
            partitions, topics = _assigned(member), _subscribed(member)
        members.append(MemberDescription(*_identity(member, member.group_instance_id), partitions, topics))
    return GroupDescription(
        printable(group.group_state or ""),
        printable(group.protocol_data or ""),
        _by_client_id(members),
        protocol_type=printable(group.protocol_type or PROTOCOL_TYPE),
    )


def interpret_consumer_group(group: Any) -> GroupDescription:
    """Reads one group of a ConsumerGroupDescribe response."""
    members = [_member_of_consumer_group(member) for member in group.members]
    state, assignor = printable(group.group_state), printable(group.assignor_name)
    return GroupDescription(state, assignor, _by_client_id(members), CONSUMER)


def _member_of_consumer_group(member: Any) -> MemberDescription:
    partitions = from_numbers((topic.topic_name, topic.partitions) for topic in member.assignment.topic_partitions)
    protocol = CONSUMER
    if member.member_type == _CLASSIC_MEMBER:
        protocol = CLASSIC
    return MemberDescription(
        *_identity(member, member.instance_id),
        frozenset(partitions),
        frozenset(member.subscribed_topic_names),
        printable(member.subscribed_topic_regex or ""),
        protocol,
        member.member_epoch,
    )


def _identity(member: Any, instance_id: str | None) -> tuple[str, str, str, str | None]:
    """Member id, client id, host and instance id. Each member chooses its client id and instance id itself."""
    if instance_id is not None:
        instance_id = printable(instance_id)
    return printable(member.member_id), printable(member.client_id), printable(member.client_host), instance_id


def _assigned(member: Any) -> frozenset[TopicPartition]:
    """The assigned partitions; none if they cannot be decoded, so that the description of the other members does not
    fail."""
    with suppress(ProtocolError):
        return decode_assignment(member.member_assignment or b"")
    return frozenset()


def _subscribed(member: Any) -> frozenset[str]:
    return frozenset(subscribed_topics([JoinedMember(member.member_id, bytes(member.member_metadata or b""))]))


def _by_client_id(members: list[MemberDescription]) -> tuple[MemberDescription, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))
