"""The protocol of KIP-848 of one member: what its heartbeats report and what follows from the responses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.consumer import ConsumerProtocol, build_leave, build_request, interpret
from spark_group_source.group.consumer_messages import ConsumerGroupHeartbeatResponse
from spark_group_source.group.consumer_state import ConsumerMembership, Heartbeat, HeartbeatAnswered, TopicIdPartition
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Phase
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand

A, B = (TopicPartition("t", number) for number in (0, 10))
T = uuid.UUID(int=1)
SETTINGS = GroupSettings(
    "g", Subscription(("t",)), WireOptions((), rack="r"), remote_assignor="range", rebalance_timeout=300.0
)
STATIC = replace(SETTINGS, instance_id="i")
NEW = ConsumerMembership(member_id="m", topics=frozenset({"t", "s"}))
OWNER = replace(NEW, generation=7, owned={B: 7, A: 7}, topic_ids={"t": T})
ALL = {
    "rack_id": "r",
    "rebalance_timeout_ms": 300_000,
    "server_assignor": "range",
    "subscribed_topic_names": ["s", "t"],
    "topic_partitions": [(T, [0, 10])],
}


def fields(me: ConsumerMembership) -> dict[str, Any]:
    """The fields that a heartbeat reports."""
    request = build_request(me, SETTINGS)
    partitions = request.topic_partitions
    reported = {
        "rack_id": request.rack_id,
        "rebalance_timeout_ms": None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        "server_assignor": request.server_assignor,
        "subscribed_topic_names": request.subscribed_topic_names,
        "subscribed_topic_regex": request.subscribed_topic_regex,
        "topic_partitions": None if partitions is None else [(each.topic_id, each.partitions) for each in partitions],
    }
    return {name: value for name, value in reported.items() if value is not None}


def test_a_join_reports_everything_with_epoch_0_and_no_partitions() -> None:
    request = build_request(NEW, SETTINGS)
    assert (request.group_id, request.member_id, request.member_epoch, request.instance_id) == ("g", "m", 0, None)
    assert fields(NEW) == ALL | {"topic_partitions": []}
    assert build_request(OWNER, SETTINGS).member_epoch == 7


@pytest.mark.parametrize(
    ("me", "reported"),
    [
        (replace(OWNER, answered=OWNER.report), {}),
        (
            replace(OWNER, answered=replace(OWNER.report, owned=frozenset())),
            {"topic_partitions": ALL["topic_partitions"]},
        ),
        (replace(OWNER, answered=OWNER.report, owned={}), {"topic_partitions": []}),
        (replace(OWNER, answered=OWNER.report, topics=frozenset({"t"})), {"subscribed_topic_names": ["t"]}),
        (OWNER, ALL),
    ],
    ids=["nothing", "all partitions", "no partitions", "topics", "after a failure"],
)
def test_a_heartbeat_reports_what_changed_since_the_last_answer(
    me: ConsumerMembership, reported: dict[str, Any]
) -> None:
    assert fields(me) == reported
    assert build_request(me, STATIC).instance_id == "i", "with every heartbeat"


@pytest.mark.parametrize(
    ("settings", "epoch"), [(SETTINGS, -1), (STATIC, -2), (replace(STATIC, static_leaves=True), -1)]
)
def test_a_static_member_leaves_for_now(settings: GroupSettings, epoch: int) -> None:
    request = build_leave(OWNER, settings)
    assert (request.member_id, request.member_epoch, request.instance_id) == ("m", epoch, settings.instance_id)
    assert request.topic_partitions is None


def test_a_response_has_all_assigned_partitions_or_keeps_the_last_assignment() -> None:
    response = SimpleNamespace(member_epoch=8, heartbeat_interval_ms=2500, assignment=None)
    assert interpret(response, OWNER.report, 45.0) == HeartbeatAnswered(OWNER.report, 8, None, 2.5, 45.0)
    topic = SimpleNamespace(topic_id=T, partitions=[0, 10])
    response.assignment = SimpleNamespace(topic_partitions=[topic])
    assigned = frozenset({TopicIdPartition(T, 0), TopicIdPartition(T, 10)})
    assert interpret(response, OWNER.report, 45.0) == HeartbeatAnswered(OWNER.report, 8, assigned, 2.5, 45.0)


class Listener:
    """Ignores all notifications."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def protocol(hand: Hand) -> Iterator[ConsumerProtocol]:
    with FakeKafka() as fake:
        fake.create_topic("t")
        cluster = Cluster(WireOptions((("127.0.0.1", fake.brokers[1].port),), "test"))
        settings = GroupSettings("g", Subscription(("t",)), WireOptions(()), consumer_protocol=True)
        member = Member(cluster, settings, Listener(), hand)
        assert isinstance(member._protocol, ConsumerProtocol)
        member._protocol.listener = Listener()
        member._protocol.subscribe(["t"])
        yield member._protocol
        cluster.close()
        member._closing.close()


def heartbeats(protocol: ConsumerProtocol, *errors: int) -> list[int]:
    """Sends heartbeats that return these error codes; returns the epochs of the heartbeats."""
    epochs: list[int] = []
    codes = iter(errors)

    def call(request: Any, deadline: Deadline, while_waiting: Any = None) -> Any:
        epochs.append(request.member_epoch)
        return ConsumerGroupHeartbeatResponse(
            version=1,
            error_code=next(codes),
            error_message="A custom assignor is in use.",
            member_epoch=5,
            heartbeat_interval_ms=5000,
            assignment=None,
        )

    protocol.client.call = call  # type: ignore[method-assign]
    for _ in errors:
        protocol.perform(Heartbeat())
    return epochs


def test_a_member_of_a_deleted_group_joins_again(protocol: ConsumerProtocol) -> None:
    assert heartbeats(protocol, 0, 69, 0) == [0, 5, 0]
    assert protocol.member.membership.phase is Phase.STABLE


@pytest.mark.parametrize(
    ("error_code", "advice"),
    [(69, "set 'kafka.group.protocol' to classic"), (112, "Set 'kafka.group.remote.assignor'")],
)
def test_a_refused_join_ends_the_query_with_the_brokers_reason_and_the_option_to_change(
    protocol: ConsumerProtocol, error_code: int, advice: str
) -> None:
    heartbeats(protocol, error_code)
    me = protocol.member.membership
    assert me.phase is Phase.FAILED
    assert "The broker says: A custom assignor is in use." in str(me.error)
    assert advice in str(me.error)


def test_after_a_join_without_partitions_heartbeats_are_frequent_until_the_others_have_sent_one(
    protocol: ConsumerProtocol, hand: Hand
) -> None:
    heartbeats(protocol, 0)
    assert protocol.member.membership.phase is Phase.STABLE
    for _ in range(6):
        assert protocol.heartbeats.next_heartbeat == hand() + 1.0
        assert not protocol.member.await_assignment(Deadline.after(0.0))
        hand.now += 1.0
        heartbeats(protocol, 0)
    assert protocol.member.await_assignment(Deadline.after(0.0)), "a member may have no partitions"
    assert protocol.heartbeats.next_heartbeat == hand() + 5.0
