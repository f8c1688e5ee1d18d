"""The protocol of KIP-848 of one member, with the coordinator's responses set by the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.consumer import PURPOSE, ConsumerProtocol
from spark_group_source.group.consumer_messages import ConsumerGroupHeartbeatResponse
from spark_group_source.group.consumer_state import Heartbeat
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Phase
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand


class Coordinator(CoordinatorClient):
    """Responds to heartbeats with these error codes in turn, and notes the epochs of the heartbeats."""

    def __init__(self, cluster: Cluster, *errors: int) -> None:
        super().__init__(cluster, "g", PURPOSE)
        self.epochs: list[int] = []
        self._errors = list(errors)

    def call(self, request: Any, deadline: Deadline, while_waiting: Any = None) -> Any:
        self.epochs.append(request.member_epoch)
        return ConsumerGroupHeartbeatResponse(
            version=1,
            error_code=self._errors.pop(0),
            error_message="A custom assignor is in use.",
            member_epoch=5,
            heartbeat_interval_ms=5000,
            assignment=None,
        )


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
    protocol.client = coordinator = Coordinator(protocol._cluster, *errors)
    for _ in errors:
        protocol.perform(Heartbeat())
    return coordinator.epochs


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
