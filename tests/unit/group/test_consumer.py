"""The protocol of KIP-848 of one member: what its heartbeats report and what follows from the responses. Its messages
have the bytes that Kafka's own classes (4.1) write."""

from __future__ import annotations

import functools
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

import spark_group_source
from spark_group_source.clock import Deadline
from spark_group_source.group.consumer.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    build_leave,
    build_request,
)
from spark_group_source.group.consumer.protocol import ConsumerProtocol
from spark_group_source.group.consumer.states import ConsumerMembership
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Heartbeat, Phase
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import wire_options

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
    reported = {name: getattr(request, name) for name in (*ALL, "subscribed_topic_regex")}
    if reported["topic_partitions"] is not None:
        reported["topic_partitions"] = [(each.topic_id, each.partitions) for each in request.topic_partitions]
    return {name: value for name, value in reported.items() if value not in (None, -1)}


def test_a_join_reports_everything_with_epoch_0_and_no_partitions() -> None:
    request = build_request(NEW, SETTINGS)
    assert (request.group_id, request.member_id, request.member_epoch, request.instance_id) == ("g", "m", 0, None)
    assert fields(NEW) == ALL | {"topic_partitions": []}
    assert build_request(OWNER, SETTINGS).member_epoch == 7


@pytest.mark.parametrize(
    ("me", "reported"),
    [
        (replace(OWNER, answered=OWNER.report), {}),
        (replace(OWNER, answered=replace(OWNER.report, owned=frozenset())), {"topic_partitions": [(T, [0, 10])]}),
        (replace(OWNER, answered=OWNER.report, owned={}), {"topic_partitions": []}),
        (replace(OWNER, answered=OWNER.report, topics=frozenset({"t"})), {"subscribed_topic_names": ["t"]}),
        (OWNER, ALL),
    ],
    ids=["nothing", "all partitions", "no partitions", "topics", "after a failure"],
)
def test_a_heartbeat_reports_changes_since_the_last_answer(me: ConsumerMembership, reported: dict[str, Any]) -> None:
    assert fields(me) == reported
    assert build_request(me, STATIC).instance_id == "i", "with every heartbeat"


def test_only_a_static_member_leaves_for_now_unless_it_is_to_leave() -> None:
    leaves = [build_leave(OWNER, each) for each in (SETTINGS, STATIC, replace(STATIC, static_leaves=True))]
    assert [(each.member_epoch, each.topic_partitions) for each in leaves] == [(-1, None), (-2, None), (-1, None)]


@pytest.fixture
def member(hand: Hand) -> Iterator[Member]:
    with FakeKafka() as fake:
        fake.create_topic("t")
        cluster = Cluster(wire_options(fake))
        settings = GroupSettings("g", Subscription(("t",)), WireOptions(()), consumer_protocol=True)
        member = Member(cluster, settings, Mock(), hand)
        assert isinstance(member._protocol, ConsumerProtocol)
        member._thread = Mock()  # the test sends the requests itself
        member.start({"t": Topic("t", "", {})}, Mock())
        yield member
        cluster.close()
        member._closing.close()


REASON = "A custom assignor is in use."


def heartbeats(member: Member, *errors: int) -> list[int]:
    """Sends heartbeats that return these error codes; returns the epochs of the heartbeats."""
    epochs: list[int] = []
    codes = iter(errors)

    def call(request: Any, deadline: Deadline, while_waiting: Any = None) -> Any:
        epochs.append(request.member_epoch)
        return ConsumerGroupHeartbeatResponse(
            version=1, error_code=next(codes), error_message=REASON, member_epoch=5, heartbeat_interval_ms=5000
        )

    member._protocol.client.call = call  # type: ignore[method-assign]
    for _ in errors:
        member._send(Heartbeat())
    return epochs


def test_a_member_of_a_deleted_group_joins_again(member: Member) -> None:
    assert heartbeats(member, 0, 69, 0) == [0, 5, 0]
    assert member._state.phase is Phase.STABLE


@pytest.mark.parametrize(
    ("error_code", "advice"),
    [(69, "set 'kafka.group.protocol' to classic"), (112, "Set 'kafka.group.remote.assignor'")],
)
def test_a_refused_join_ends_a_query_with_the_reason(member: Member, error_code: int, advice: str) -> None:
    heartbeats(member, error_code)
    me = member._state
    assert me.phase is Phase.FAILED
    assert f"The broker says: {REASON}" in str(me.error)
    assert advice in str(me.error)


def test_after_a_join_without_partitions_heartbeats_are_frequent_until_the_others_have_sent_one(
    member: Member, hand: Hand
) -> None:
    heartbeats(member, 0)
    assert member._state.phase is Phase.STABLE
    for _ in range(6):
        assert member._heartbeats.next_heartbeat == hand() + 1.0
        assert not member.await_assignment(Deadline.after(0.0))
        hand.now += 1.0
        heartbeats(member, 0)
    assert member.await_assignment(Deadline.after(0.0)), "a member may have no partitions"
    assert member._heartbeats.next_heartbeat == hand() + 5.0


def test_the_session_ends_by_the_timeout_of_the_brokers_also_if_no_further_heartbeat_succeeds(
    member: Member, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assignment does not wait for the lookup, and the coordinator may be gone after it."""
    client = member._protocol.client
    monkeypatch.setattr(client, "supports", lambda api_key, version: True)
    heartbeat = ConsumerGroupHeartbeatResponse(version=1, member_epoch=5, heartbeat_interval_ms=5000)

    def call(request: Any, deadline: Deadline, while_waiting: Any = None) -> Any:
        hand.now += 0.5
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            return heartbeat
        config = Mock(value="3000")
        config.name = "consumer.session.timeout.ms"
        return Mock(results=[Mock(configs=[config])])

    monkeypatch.setattr(client, "call", call)
    member._send(Heartbeat())
    assert hand.now == 1.0
    assert member._state.session_ends == 3.0, "3 s after the heartbeat was sent"


TOPIC_ID = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
OWNED = "02000102030405060708090a0b0c0d0e0f0300000000000000020000"
"""Partitions 0 and 2 of this topic."""
IN_TOPIC_T = "02000102030405060708090a0b0c0d0e0f02740300000000000000020000"
"""The same with the topic's name."""


JOINING = ALL | {"member_epoch": 0, "instance_id": "i", "topic_partitions": []}
JOINING |= {"subscribed_topic_names": ["t", "u"], "server_assignor": "uniform"}


@pytest.mark.parametrize(
    ("version", "fields", "encoded"),
    [
        (0, JOINING, "0267026d0000000002690272000493e0030274027508756e69666f726d0100"),
        (
            1,
            JOINING | {"subscribed_topic_regex": "t.*"},
            "0267026d0000000002690272000493e0030274027504742e2a08756e69666f726d0100",
        ),
        (0, {"member_epoch": 7}, "0267026d000000070000ffffffff00000000"),
        (1, {"member_epoch": 7, "topic_partitions": [[0, 2]]}, f"0267026d000000070000ffffffff000000{OWNED}"),
    ],
    ids=["joins", "joins with a pattern", "unchanged", "partitions"],
)
def test_a_heartbeat_has_the_bytes_of_java(version: int, fields: dict[str, Any], encoded: str) -> None:
    topic = functools.partial(ConsumerGroupHeartbeatRequest.TopicPartitions, version=version, topic_id=TOPIC_ID)
    if "topic_partitions" in fields:
        fields = fields | {"topic_partitions": [topic(partitions=each) for each in fields["topic_partitions"]]}
    request = ConsumerGroupHeartbeatRequest(version=version, group_id="g", member_id="m", **fields)
    assert request.encode().hex() == encoded


@pytest.mark.parametrize("version", [0, 1])
def test_a_response_without_an_assignment_differs_from_one_with_partitions(version: int) -> None:
    decode = ConsumerGroupHeartbeatResponse[version].decode
    unchanged = decode(bytes.fromhex("00000003000000026d0000000700001388ff00"))
    assert (unchanged.throttle_time_ms, unchanged.error_code, unchanged.member_epoch) == (3, 0, 7)
    assert (unchanged.heartbeat_interval_ms, unchanged.assignment) == (5000, None)
    assigned = decode(bytes.fromhex(f"00000000000000026d000000080000138801{OWNED}00"))
    (topic,) = assigned.assignment.topic_partitions
    assert (assigned.member_epoch, topic.topic_id, topic.partitions) == (8, TOPIC_ID, [0, 2])


@pytest.mark.parametrize(("version", "member_type", "encoded_type"), [(0, -1, ""), (1, 1, "01")])
def test_a_described_group_has_its_members(version: int, member_type: int, encoded_type: str) -> None:
    request = ConsumerGroupDescribeRequest(version=version, group_ids=["g"], include_authorized_operations=False)
    assert request.encode().hex() == "0202670000"
    response = ConsumerGroupDescribeResponse[version].decode(
        bytes.fromhex(
            "0000000002000000026707537461626c65000000080000000808756e69666f726d02026d026902720000000802630b2f3132372e302e"
            f"302e3102027400{IN_TOPIC_T}{IN_TOPIC_T}{encoded_type}00800000000000"
        )
    )
    (group,) = response.groups
    (member,) = group.members
    assert (group.group_id, group.group_state, group.group_epoch, group.assignor_name) == ("g", "Stable", 8, "uniform")
    assert (member.member_id, member.instance_id, member.client_host) == ("m", "i", "/127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], None)
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_id, topic.topic_name, topic.partitions) == (TOPIC_ID, "t", [0, 2])
    assert member.member_type == member_type


def test_the_schemas_load_from_a_zip(tmp_path: Path) -> None:
    """Spark distributes packages as zip files (``--py-files``)."""
    archive, package = tmp_path / "package.zip", Path(spark_group_source.__file__).parent
    with zipfile.ZipFile(archive, "w") as file:
        for path in (path for path in package.rglob("*") if path.suffix in (".py", ".json")):
            file.write(path, path.relative_to(package.parent))
    command = [sys.executable, "-c", "from spark_group_source.group.consumer import messages as m; print(m.__file__)"]
    printed = subprocess.check_output(command, text=True, timeout=90, env={"PYTHONPATH": str(archive)}, cwd=tmp_path)
    assert printed.startswith(str(archive))
