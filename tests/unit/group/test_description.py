"""The description of a group from the responses of a coordinator that has only one of the two protocols' groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import DescribeGroupsResponse
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.clock import Deadline
from spark_group_source.group.consumer_messages import ConsumerGroupDescribeResponse
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.description import GroupDescription, MemberDescription, describe
from spark_group_source.group.membership import ErrorAction, RequestFailed
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions

A, B = TopicPartition("t", 0), TopicPartition("t", 2)


class Coordinator(CoordinatorClient):
    """Returns the responses in turn, and notes the requests."""

    def __init__(self, *responses: Any, old: bool = False) -> None:
        super().__init__(Cluster(WireOptions((), "test")), "g", "test")
        self.requested: list[str] = []
        self._responses = list(responses)
        self._old = old

    def supports(self, api_key: int, version: int) -> bool:
        assert (api_key, version) == (ApiKey.ConsumerGroupDescribe, 1)
        return not self._old

    def call(self, request: Any, deadline: Deadline, while_waiting: Any = None) -> Any:
        self.requested.append(request.name)
        return self._responses.pop(0)


def described(client: Coordinator) -> GroupDescription | RequestFailed:
    return describe(client, "g", Deadline.after(1.0))


def classic_group(state: str, *members: Any, error: int = 0) -> Any:
    group = DescribeGroupsResponse.DescribedGroup
    return DescribeGroupsResponse(
        version=5,
        groups=[
            group(
                version=5,
                error_code=error,
                group_state=state,
                protocol_type="consumer" if members else "",
                protocol_data="range" if members else "",
                members=list(members),
            )
        ],
    )


def classic_member(client_id: str, **encoded: bytes) -> Any:
    member = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember
    given = {"member_id": "m", "group_instance_id": None, "client_id": client_id, "client_host": "/10.0.0.1"}
    return member(version=5, **given, **encoded)


def consumer_group(*members: Any, error: int = 0) -> Any:
    group = ConsumerGroupDescribeResponse.DescribedGroup
    return ConsumerGroupDescribeResponse(
        version=1,
        groups=[
            group(
                version=1,
                error_code=error,
                group_state="Reconciling" if members else "Empty",
                assignor_name="uniform",
                members=list(members),
            )
        ],
    )


def consumer_member(client_id: str, partitions: list[int], **fields: Any) -> Any:
    member = ConsumerGroupDescribeResponse.DescribedGroup.Member
    topic = SimpleNamespace(topic_id=UUID(int=7), topic_name="t", partitions=partitions)
    return member(
        version=1,
        member_id="m",
        client_id=client_id,
        client_host="/10.0.0.1",
        assignment=SimpleNamespace(topic_partitions=[topic]),
        target_assignment=SimpleNamespace(topic_partitions=[]),
        **fields,
    )


DEAD = GroupDescription("Dead", "", ())


def test_a_member_whose_assignment_cannot_be_decoded_is_described_without_partitions() -> None:
    member = classic_member("b", member_metadata=b"", member_assignment=b"\x00\x00\x7f\xff\xff\xff")
    group = described(Coordinator(classic_group("Stable", member)))
    assert isinstance(group, GroupDescription)
    assert [(each.client_id, each.partitions) for each in group.members] == [("b", frozenset())]


def test_a_classic_group_is_described_with_one_request() -> None:
    subscription = ConsumerProtocolSubscription(
        version=3, topics=["t", "u"], user_data=b"", owned_partitions=[], generation_id=1, rack_id=None
    ).encode()
    assignment = ConsumerProtocolAssignment(0, [("t", [0, 2])], b"").encode(version=0)
    member = classic_member("b", member_metadata=subscription, member_assignment=assignment)
    rebalancing = classic_member("a", member_metadata=b"", member_assignment=b"")
    client = Coordinator(classic_group("Stable", member, rebalancing))
    assert described(client) == GroupDescription(
        "Stable",
        "range",
        (
            MemberDescription("m", "a", "10.0.0.1"),
            MemberDescription("m", "b", "10.0.0.1", None, frozenset({A, B}), frozenset({"t", "u"})),
        ),
        "classic",
    )
    assert client.requested == ["DescribeGroupsRequest"]


def test_a_group_of_kip_848_has_its_members_of_both_protocols() -> None:
    new = consumer_member(
        "b", [2], member_type=1, member_epoch=7, subscribed_topic_names=[], subscribed_topic_regex="t.*"
    )
    old = consumer_member(
        "a",
        [0],
        member_type=0,
        member_epoch=6,
        subscribed_topic_names=["t"],
        subscribed_topic_regex="",
        instance_id="i",
    )
    assert described(Coordinator(classic_group("Dead"), consumer_group(new, old))) == GroupDescription(
        "Reconciling",
        "uniform",
        (
            MemberDescription("m", "a", "10.0.0.1", "i", frozenset({A}), frozenset({"t"}), "", "classic", 6),
            MemberDescription("m", "b", "10.0.0.1", None, frozenset({B}), frozenset(), "t.*", "consumer", 7),
        ),
        "consumer",
    )


def test_a_group_of_kip_848_without_members_exists() -> None:
    expected = GroupDescription("Empty", "uniform", (), "consumer")
    assert described(Coordinator(classic_group("Dead"), consumer_group())) == expected


def test_a_group_with_topics_that_may_not_be_described_has_hidden_members() -> None:
    group = described(Coordinator(classic_group("Dead"), consumer_group(error=29)))
    assert group == GroupDescription("Unknown", "", (), "consumer", members_hidden=True)


@pytest.mark.parametrize("error_code", [69, 35])
def test_a_group_that_neither_request_finds_is_dead(error_code: int) -> None:
    """35: the brokers have the protocol switched off."""
    assert described(Coordinator(classic_group("Dead"), consumer_group(error=error_code))) == DEAD


def test_an_older_broker_gets_no_request_that_it_lacks() -> None:
    client = Coordinator(classic_group("Dead"), old=True)
    assert described(client) == DEAD
    assert client.requested == ["DescribeGroupsRequest"]


@pytest.mark.parametrize(
    ("responses", "action"),
    [
        ([classic_group("", error=15)], ErrorAction.REDISCOVER),
        ([RequestFailed(ErrorAction.REDISCOVER, "no answer")], ErrorAction.REDISCOVER),
        ([classic_group("Dead"), consumer_group(error=14)], ErrorAction.RETRY),
        ([classic_group("Dead"), consumer_group(error=30)], ErrorAction.FATAL),
        ([classic_group("Dead"), RequestFailed(ErrorAction.REDISCOVER, "no answer")], ErrorAction.REDISCOVER),
    ],
)
def test_an_error_is_no_dead_group(responses: list[Any], action: ErrorAction) -> None:
    failure = described(Coordinator(*responses))
    assert isinstance(failure, RequestFailed)
    assert failure.action is action
