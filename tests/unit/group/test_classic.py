"""The classic protocol of one member, with responses that come late."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from spark_group_source.group.classic.protocol import ClassicProtocol
from spark_group_source.group.classic.states import ClassicMembership, HeartbeatSucceeded
from spark_group_source.group.membership import Heartbeat
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.wire.wire_options import WireOptions
from tests.unit.hand_clock import Hand


def test_the_session_lasts_from_the_request_of_a_heartbeat_and_not_from_its_response() -> None:
    """The coordinator may have handled the request at once: from then on it counts."""
    hand = Hand()
    settings = GroupSettings("g", Subscription(("t",)), WireOptions(()), session_timeout=40.0)
    context: Any = Mock(settings=settings, clock=hand)
    protocol = ClassicProtocol(context)
    requests: Any = Mock()

    def answer_late(*_: object, **__: object) -> None:
        hand.now += 8.0

    requests.heartbeat.side_effect = answer_late
    protocol._requests = requests
    me = ClassicMembership(member_id="m", generation=3)
    assert protocol.send(Heartbeat(), me, Mock()).events == (HeartbeatSucceeded(3, 40.0),)
