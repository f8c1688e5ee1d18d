"""What a member writes has the bytes of Kafka's own client, so that nullable fields without a value are null.

``ClientBytes.java`` of the integration tests has printed Java's bytes; a test there runs it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.clock import Deadline
from spark_group_source.group.assignors import ASSIGNORS
from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.group.classic.assignment import Assignors, JoinedMember, read_assignment
from spark_group_source.group.classic.messages import JoinResult, MembershipRequests
from spark_group_source.group.classic.states import Joined
from spark_group_source.group.commits import CommittedOffset, GroupOffsets
from spark_group_source.group.consumer.messages import build_leave, build_request
from spark_group_source.group.consumer.states import ConsumerMembership
from spark_group_source.group.coordinator import WhileWaiting
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.wire_options import WireOptions

JAVAS: dict[str, str] = json.loads((Path(__file__).parents[2] / "java_bytes.json").read_text(encoding="utf-8"))
"""Bytes of Kafka 4.1.1 in hex, by name."""
TP = TopicPartition("t", 0)
COUNTS = PartitionCounts({"t": frozenset({0, 1})})
ME = Membership(member_id="m", generation=5, reason="the query starts")
QUIET = WhileWaiting(lambda: None, 1)
VERSIONS = {"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5, "OffsetCommit": 8, "OffsetFetch": 8}
HERE = "tests.unit.group.test_client_bytes"


@pytest.mark.parametrize("name", ASSIGNORS)
def test_subscriptions_and_assignments_have_javas_bytes(name: str) -> None:
    assignors, near = Assignors([name]), Assignors([name], "a")
    first = assignors.subscriptions(["t"], [], -1)[name]
    assigned = assignors.assign(name, [JoinedMember("m", first)], COUNTS)["m"]
    partitions = sorted(read_assignment(assigned).partitions)
    assignors.assigned(name, partitions, 5)
    kept = partitions if assignors.cooperative else []
    written = {
        "first subscription": first,
        "with a rack": near.subscriptions(["t"], [], -1)[name],
        "assignment": assigned,
        "next subscription": assignors.subscriptions(["t"], kept, 5)[name],
    }
    for what, encoded in written.items():
        assert encoded.hex() == JAVAS[f"{name}: {what}"], what


def test_a_member_without_a_subscription_gets_javas_empty_assignment() -> None:
    assert (
        Assignors(["range"]).assign("range", [JoinedMember("odd", b"")], COUNTS)["odd"].hex() == JAVAS["no assignment"]
    )


class Coordinator:
    """Takes requests in place of a :class:`CoordinatorClient`, and answers none."""

    broker_id = 1

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def call(self, request: Any, deadline: Deadline, while_waiting: WhileWaiting | None = None) -> RequestFailed:
        self.requests.append(request)
        return RequestFailed(ErrorAction.RETRY, "no answer")

    def connect(self, deadline: Deadline) -> None:
        return None

    connect_to_known = connect

    def supports(self, api_key: int, version: int) -> bool:
        return api_key is ApiKey.JoinGroup

    def encoded(self, api: str) -> list[str]:
        """The requests so far, in the version of Java's."""
        version = VERSIONS[api]
        requests = [each for each in self.requests if each.name == f"{api}Request"]
        return [each.encode(version=each.API_VERSION or version).hex() for each in requests]


def settings(instance_id: str | None, **changes: Any) -> GroupSettings:
    return GroupSettings("g", Subscription(("t",)), WireOptions(()), instance_id=instance_id, **changes)


@pytest.mark.parametrize(("instance_id", "suffix"), [(None, ""), ("i", " of a static member")])
def test_requests_have_javas_bytes(instance_id: str | None, suffix: str) -> None:
    coordinator, deadline = Coordinator(), Deadline.after(60.0)
    requests = MembershipRequests(Mock(), settings(instance_id))
    offsets = GroupOffsets(Mock(), settings(instance_id))
    for client in (requests, offsets):
        setattr(client, "client" if client is requests else "_client", coordinator)
    requests.join(ME, {"range": b"\1\2"}, deadline, QUIET)
    requests.sync(JoinResult(Joined("m", 5, 5), "range", False, False), {}, deadline, QUIET)
    requests.heartbeat(ME, deadline)
    requests.leave("m", "the query ends", deadline)
    offsets.commit(ME, {TP: CommittedOffset(7, "", 3)}, deadline)
    for api in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit"):
        assert coordinator.encoded(api) == [JAVAS[api + suffix]], api


@pytest.mark.parametrize(("instance_id", "suffix"), [(None, ""), ("i", " of a static member")])
def test_heartbeats_of_kip_848_have_javas_bytes(instance_id: str | None, suffix: str) -> None:
    new = ConsumerMembership(member_id="m", topics=frozenset({"t"}))
    stable = ConsumerMembership(member_id="m", topics=frozenset({"t"}), generation=5)
    known = ConsumerMembership(member_id="m", topics=frozenset({"t"}), generation=5, answered=stable.report)
    written = {
        "ConsumerGroupHeartbeat that joins": build_request(new, settings(instance_id)),
        "ConsumerGroupHeartbeat": build_request(known, settings(instance_id)),
        "ConsumerGroupHeartbeat that leaves": build_leave(known, settings(instance_id)),
    }
    for name, request in written.items():
        assert request.encode().hex() == JAVAS[name + suffix], name


@pytest.mark.parametrize(("member", "name"), [(False, "OffsetFetch"), (True, "OffsetFetch of a KIP-848 member")])
def test_a_lookup_of_committed_offsets_has_javas_bytes(member: bool, name: str) -> None:
    coordinator = Coordinator()
    offsets = GroupOffsets(Mock(), settings(None, consumer_protocol=member))
    offsets._client = coordinator  # type: ignore[assignment]
    offsets.committed([TP], Deadline.after(60.0), ME if member else None)
    assert coordinator.encoded("OffsetFetch") == [JAVAS[name]]


class Talks(RoundRobinPartitionAssignor):  # type: ignore[misc]
    """A user's assignor; ``said`` is the user data that it sends."""

    name = "talks"
    said: bytes | None = b""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def metadata(self, topics: Any) -> ConsumerProtocolSubscription:
        return ConsumerProtocolSubscription(0, list(topics), self.said)

    def assign(self, cluster: Any, members: Any) -> dict[str, ConsumerProtocolAssignment]:
        self.heard += [each.metadata.user_data for each in members]
        return {each.member_id: ConsumerProtocolAssignment(0, [("t", [0, 1])], self.said) for each in members}

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        self.heard.append(assignment.user_data)


@pytest.mark.parametrize(("said", "written"), [(None, None), (b"", None), (b"hello", b"hello")])
def test_user_data_of_a_users_assignor_arrives_and_is_null_if_empty(
    monkeypatch: pytest.MonkeyPatch, said: bytes | None, written: bytes | None
) -> None:
    monkeypatch.setattr(Talks, "said", said)
    assignors = Assignors([f"{HERE}:Talks"])
    subscription = assignors.subscriptions(["t"], [], -1)["talks"]
    encoded = assignors.assign("talks", [JoinedMember("m", subscription)], COUNTS)["m"]
    assert ConsumerProtocolSubscription.decode(subscription).user_data == written
    assert ConsumerProtocolAssignment.decode(encoded).user_data == written
    received = read_assignment(encoded)
    assignors.assigned("talks", received.partitions, 5, received.user_data)
    assert assignors._by_name["talks"].heard == [written or b"", written or b""], "bytes, whoever wrote them"
