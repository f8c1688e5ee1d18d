"""What the log says while requests to the coordinator fail, on a clock that the test turns. The backoff before a join:
none for the first joins in a row, then it doubles. Timeouts of a member that depend on other settings."""

from __future__ import annotations

from typing import Any

import pytest

from spark_group_source import clock
from spark_group_source.group import heartbeat_schedule
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.heartbeat_schedule import PROMPT_JOINS, HeartbeatSchedule
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.wire.wire_options import WireOptions
from tests.unit.hand_clock import Hand


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait, without jitter."""
    waited: list[float] = []
    monkeypatch.setattr(heartbeat_schedule, "sleep", lambda seconds, deadline: waited.append(seconds))
    monkeypatch.setattr(clock.Backoff.__init__, "__defaults__", (0.0, clock.RANDOM.random))
    return waited


@pytest.fixture
def joins(hand: Hand, waits: list[float]) -> HeartbeatSchedule:
    wire = WireOptions((), retry_backoff=0.01, retry_backoff_max=1.0)
    return HeartbeatSchedule(GroupSettings("g", Subscription(("t",)), wire), 3.0, hand, None)


def test_failing_requests_warn_once_a_minute(
    joins: HeartbeatSchedule, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    for at, warnings in ((59.0, 0), (61.0, 1), (62.0, 1), (120.0, 1), (121.0, 2)):
        hand.now = at
        joins.log_failure(RequestFailed(ErrorAction.RETRY, "why"))
        assert caplog.text.count("still retrying: why") == warnings


def test_the_first_joins_in_a_row_need_no_backoff_and_the_next_double_it(
    joins: HeartbeatSchedule, waits: list[float]
) -> None:
    for _ in range(PROMPT_JOINS):
        joins.await_join()
    assert waits == []
    for _ in range(5):
        joins.await_join()
    assert waits == pytest.approx([0.16, 0.32, 0.64, 1.0, 1.0])
    waits.clear()
    joins.record_success(joined=True)
    for _ in range(PROMPT_JOINS):
        joins.await_join()
    assert waits == [], "a heartbeat was successful"


def test_a_join_after_the_backoff_of_a_failed_request_waits_no_longer(
    joins: HeartbeatSchedule, waits: list[float]
) -> None:
    for _ in range(PROMPT_JOINS):
        joins.await_join()
    joins.await_retry()
    joins.await_join()
    assert waits == [0.01]
    joins.await_join()
    assert waits == pytest.approx([0.01, 0.32])


def settings(rebalance: float, session: float, heartbeat: float, request: float = 30.0) -> GroupSettings:
    wire = WireOptions((), request_timeout=request)
    times: Any = {"rebalance_timeout": rebalance, "session_timeout": session, "heartbeat_interval": heartbeat}
    return GroupSettings("g", Subscription(("t",)), wire, **times)


@pytest.mark.parametrize(
    ("member", "timeout"),
    [
        (settings(300.0, 45.0, 3.0), 240.0),
        (settings(300.0, 45.0, 3.0, request=5.0), 250.0),
        (settings(60.0, 45.0, 3.0), 30.0),
        (settings(1.0, 45.0, 3.0), 0.5),
        (settings(0.3, 0.2, 0.05), 0.15),
    ],
)
def test_the_revocation_timeout_ends_before_the_brokers_rebalance_timeout(
    member: GroupSettings, timeout: float
) -> None:
    assert member.revocation_timeout == pytest.approx(timeout)


@pytest.mark.parametrize("seconds", [1.0, 60.0, 61.0, 10_000.0])
def test_the_rebalance_timeout_for_a_batch_is_the_least_that_waits_for_it(seconds: float) -> None:
    needed = settings(300.0, 45.0, 3.0).rebalance_timeout_for(seconds)
    assert settings(needed, 45.0, 3.0).revocation_timeout == pytest.approx(seconds)
