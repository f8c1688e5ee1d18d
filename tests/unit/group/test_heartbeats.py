"""What the log says while requests to the coordinator fail, on a clock that the test turns."""

from __future__ import annotations

import logging

import pytest

from spark_group_source.group.membership import ErrorAction, RequestFailed
from spark_group_source.group.protocol import HeartbeatState
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.wire.settings import WireOptions
from tests.unit.hand_clock import Hand


def test_warnings_about_failing_requests_are_a_minute_apart(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    state = HeartbeatState(GroupSettings("g", Subscription(("t",)), WireOptions(())), hand)
    began = hand.now
    with caplog.at_level(logging.WARNING):
        for at, warnings in ((59.0, 0), (61.0, 1), (62.0, 1), (120.0, 1), (121.0, 2)):
            hand.now = began + at
            state.log_failure(RequestFailed(ErrorAction.RETRY, "why"))
            assert caplog.text.count("still retrying: why") == warnings
