"""A heartbeat reports everything once, and then only what has changed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source.group.consumer import build_leave, build_request, interpret
from spark_group_source.group.consumer_messages import ConsumerGroupHeartbeatResponse
from spark_group_source.group.consumer_state import ConsumerMembership, HeartbeatAnswered, TopicIdPartition
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.settings import WireOptions

A, B = (TopicPartition("t", number) for number in (0, 10))
T = uuid.UUID(int=1)
SETTINGS = GroupSettings(
    "g", Subscription(("t",)), WireOptions((), rack="r"), remote_assignor="range", rebalance_timeout=300.0
)
STATIC = replace(SETTINGS, instance_id="i")
NEW = ConsumerMembership(member_id="m", topics=frozenset({"t", "s"}))
OWNER = replace(NEW, generation=7, owned={B: 7, A: 7}, topic_ids={"t": T})
UNCHANGED = (None, -1, None, None, None, None)


def fields(me: ConsumerMembership) -> tuple[Any, ...]:
    request = build_request(me, SETTINGS)
    partitions = request.topic_partitions
    return (
        request.rack_id,
        request.rebalance_timeout_ms,
        request.server_assignor,
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        partitions if partitions is None else [(topic.topic_id, topic.partitions) for topic in partitions],
    )


def test_a_join_reports_everything_with_epoch_0_and_no_partitions() -> None:
    request = build_request(NEW, SETTINGS)
    assert (request.group_id, request.member_id, request.member_epoch, request.instance_id) == ("g", "m", 0, None)
    assert fields(NEW) == ("r", 300_000, "range", ["s", "t"], None, [])


def test_a_heartbeat_after_an_answer_reports_nothing_that_is_unchanged() -> None:
    request = build_request(replace(OWNER, answered=OWNER.report), SETTINGS)
    assert (request.member_id, request.member_epoch) == ("m", 7)
    assert fields(replace(OWNER, answered=OWNER.report)) == UNCHANGED


def test_a_new_epoch_is_no_change() -> None:
    assert fields(replace(OWNER, generation=8, answered=OWNER.report)) == UNCHANGED


def test_changed_partitions_are_reported_as_a_whole() -> None:
    me = replace(OWNER, answered=replace(OWNER.report, owned=frozenset()))
    assert fields(me) == (*UNCHANGED[:-1], [(T, [0, 10])])
    many = [TopicPartition("t", number) for number in range(20)]
    assert fields(replace(me, owned=dict.fromkeys(many, 7)))[-1] == [(T, list(range(20)))]
    revoked = replace(OWNER, owned={}, answered=OWNER.report)
    assert fields(revoked) == (*UNCHANGED[:-1], [])


def test_changed_topics_are_reported() -> None:
    me = replace(OWNER, topics=frozenset({"t"}), answered=OWNER.report)
    assert fields(me) == (*UNCHANGED[:3], ["t"], *UNCHANGED[4:])


def test_a_heartbeat_after_a_failure_reports_everything() -> None:
    assert fields(OWNER) == ("r", 300_000, "range", ["s", "t"], None, [(T, [0, 10])])


@pytest.mark.parametrize("answered", [None, OWNER.report])
def test_every_heartbeat_of_a_static_member_has_its_instance_id(answered: Any) -> None:
    assert build_request(replace(OWNER, answered=answered), STATIC).instance_id == "i"


@pytest.mark.parametrize(
    ("settings", "epoch"), [(SETTINGS, -1), (STATIC, -2), (replace(STATIC, static_leaves=True), -1)]
)
def test_a_static_member_leaves_for_now(settings: GroupSettings, epoch: int) -> None:
    request = build_leave(OWNER, settings)
    assert (request.member_id, request.member_epoch, request.instance_id) == ("m", epoch, settings.instance_id)
    assert request.topic_partitions is None


def response(assignment: Any) -> Any:
    return ConsumerGroupHeartbeatResponse(
        version=1, member_id="m", member_epoch=8, heartbeat_interval_ms=2500, assignment=assignment
    )


def test_a_response_without_an_assignment_keeps_the_last_one() -> None:
    assert interpret(response(None), OWNER.report, 45.0) == HeartbeatAnswered(OWNER.report, 8, None, 2.5, 45.0)


def test_a_response_has_all_assigned_partitions() -> None:
    assignment = ConsumerGroupHeartbeatResponse.Assignment
    topic = assignment.TopicPartitions(version=1, topic_id=T, partitions=[0, 10])
    answer = interpret(response(assignment(version=1, topic_partitions=[topic])), OWNER.report, 45.0)
    assert answer.assignment == frozenset({TopicIdPartition(T, 0), TopicIdPartition(T, 10)})
