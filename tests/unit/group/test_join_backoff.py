"""The backoff before a join: none for the first joins in a row, then it doubles."""

from __future__ import annotations

import pytest

from spark_group_source import clock
from spark_group_source.group import protocol
from spark_group_source.group.protocol import PROMPT_JOINS, JoinBackoff
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.wire.settings import WireOptions
from tests.unit.hand_clock import Hand


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait, without jitter."""
    waited: list[float] = []
    monkeypatch.setattr(protocol, "sleep", lambda seconds, deadline: waited.append(seconds))
    monkeypatch.setattr(clock.Backoff.__init__, "__defaults__", (0.0, clock.RANDOM.random))
    return waited


@pytest.fixture
def joins(hand: Hand, waits: list[float]) -> JoinBackoff:
    wire = WireOptions((), retry_backoff=0.01, retry_backoff_max=1.0)
    settings = GroupSettings("g", Subscription(("t",)), wire)
    return JoinBackoff(settings, hand, None)


def test_the_first_joins_in_a_row_need_no_backoff_and_the_next_ones_double_it(
    joins: JoinBackoff, waits: list[float]
) -> None:
    for _ in range(PROMPT_JOINS):
        joins.wait()
    assert waits == []
    for _ in range(5):
        joins.wait()
    assert waits == pytest.approx([0.16, 0.32, 0.64, 1.0, 1.0])


def test_a_join_after_the_backoff_of_a_failed_request_does_not_wait_again_but_the_next_one_does(
    joins: JoinBackoff, waits: list[float]
) -> None:
    for _ in range(PROMPT_JOINS):
        joins.wait()
    joins.skip()
    joins.wait()
    assert waits == []
    joins.wait()
    assert waits == pytest.approx([0.32])


def test_joins_after_a_successful_heartbeat_need_no_backoff(joins: JoinBackoff, waits: list[float]) -> None:
    for _ in range(PROMPT_JOINS):
        joins.wait()
    joins.reset()
    for _ in range(PROMPT_JOINS):
        joins.wait()
    assert waits == []
