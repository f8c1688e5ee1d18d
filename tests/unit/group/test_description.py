"""The description of a group from the responses of a coordinator that has only one of the two protocols' groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.clock import Deadline
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.description import GroupDescription, MemberDescription, describe
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import RequestFailed
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.wire_options import WireOptions

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
    kind, assignor = ("consumer", "range") if members else ("", "")
    group = SimpleNamespace(error_code=error, group_state=state, protocol_type=kind, protocol_data=assignor)
    group.members = members
    return SimpleNamespace(groups=[group])


def classic_member(client_id: str, subscription: bytes, assignment: bytes) -> Any:
    names = {"member_id": "m", "group_instance_id": None, "client_id": client_id, "client_host": "/10.0.0.1"}
    return SimpleNamespace(**names, member_metadata=subscription, member_assignment=assignment)


def consumer_group(*members: Any, error: int = 0) -> Any:
    state = "Reconciling" if members else "Empty"
    group = SimpleNamespace(error_code=error, group_state=state, assignor_name="uniform", members=members)
    return SimpleNamespace(groups=[group])


def consumer_member(client_id: str, partition: int, **fields: Any) -> Any:
    topic = SimpleNamespace(topic_id=UUID(int=7), topic_name="t", partitions=[partition])
    names = {"member_id": "m", "client_id": client_id, "client_host": "/10.0.0.1", "instance_id": None} | fields
    return SimpleNamespace(**names, assignment=SimpleNamespace(topic_partitions=[topic]))


def test_a_classic_group_is_described_with_one_request() -> None:
    subscription = ConsumerProtocolSubscription(
        version=3, topics=["t", "u"], user_data=b"", owned_partitions=[], generation_id=1, rack_id=None
    ).encode()
    assignment = ConsumerProtocolAssignment(0, [("t", [0, 2])], b"").encode(version=0)
    members = [
        classic_member("b", subscription, assignment),
        classic_member("a", b"", b""),  # a rebalance is under way
        classic_member("c", b"", b"\x00\x00\x7f\xff\xff\xff"),  # it cannot be decoded
    ]
    client = Coordinator(classic_group("Stable", *members))
    expected = (
        MemberDescription("m", "a", "/10.0.0.1"),
        MemberDescription("m", "b", "/10.0.0.1", None, frozenset({A, B}), frozenset({"t", "u"})),
        MemberDescription("m", "c", "/10.0.0.1"),
    )
    assert described(client) == GroupDescription("Stable", "range", expected, "classic")
    assert client.requested == ["DescribeGroupsRequest"]


NEW = consumer_member("b", 2, member_type=1, member_epoch=7, subscribed_topic_names=[], subscribed_topic_regex="t.*")
OLD = consumer_member(
    "a", 0, member_type=0, member_epoch=6, subscribed_topic_names=["t"], subscribed_topic_regex="", instance_id="i"
)
BOTH = (
    MemberDescription("m", "a", "/10.0.0.1", "i", frozenset({A}), frozenset({"t"}), "", "classic", 6),
    MemberDescription("m", "b", "/10.0.0.1", None, frozenset({B}), frozenset(), "t.*", "consumer", 7),
)
DEAD = GroupDescription("Dead", "", ())


@pytest.mark.parametrize(
    ("response", "group"),
    [
        (consumer_group(NEW, OLD), GroupDescription("Reconciling", "uniform", BOTH, "consumer")),
        (consumer_group(), GroupDescription("Empty", "uniform", (), "consumer")),
        (consumer_group(error=29), GroupDescription("Unknown", "", (), "consumer", members_hidden=True)),
        (consumer_group(error=69), DEAD),
        (consumer_group(error=35), DEAD),
    ],
    ids=["members of both protocols", "no members", "topics that may not be described", "unknown", "switched off"],
)
def test_a_group_that_the_classic_request_lacks_may_be_one_of_kip_848(response: Any, group: GroupDescription) -> None:
    assert described(Coordinator(classic_group("Dead"), response)) == group


def test_an_older_broker_gets_no_request_that_it_lacks() -> None:
    client = Coordinator(classic_group("Dead"), old=True)
    assert described(client) == DEAD
    assert client.requested == ["DescribeGroupsRequest"]


UNANSWERED = RequestFailed(ErrorAction.REDISCOVER, "no answer")


@pytest.mark.parametrize(
    ("responses", "action"),
    [
        ([classic_group("", error=15)], ErrorAction.REDISCOVER),
        ([UNANSWERED], ErrorAction.REDISCOVER),
        ([classic_group("Dead"), consumer_group(error=14)], ErrorAction.RETRY),
        ([classic_group("Dead"), consumer_group(error=30)], ErrorAction.FATAL),
        ([classic_group("Dead"), UNANSWERED], ErrorAction.REDISCOVER),
    ],
)
def test_an_error_is_no_dead_group(responses: list[Any], action: ErrorAction) -> None:
    failure = described(Coordinator(*responses))
    assert isinstance(failure, RequestFailed)
    assert failure.action is action
