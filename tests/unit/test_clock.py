"""Backoffs double within their jitter, and a repeated line is logged once in an interval."""

from __future__ import annotations

import pytest

from spark_group_source.clock import JITTER, Backoff, LogEvery
from tests.unit.hand_clock import Hand


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_each_backoff_is_twice_the_previous_within_the_jitter(chance: float, factor: float) -> None:
    backoff = Backoff(0.1, 0.5, chance=lambda: chance)
    expected = [0.1, 0.2, 0.4, 0.5, 0.5]
    assert [backoff.next() for _ in expected] == pytest.approx([each * factor for each in expected])
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1 * factor)
    assert max(backoff.next() for _ in range(5000)) == pytest.approx(0.5 * factor), "many failures do not overflow"


def test_each_backoff_varies_within_the_jitter() -> None:
    backoff = Backoff(1.0, 1.0)
    backoffs = [backoff.next() for _ in range(1000)]
    assert len(set(backoffs)) > 900
    assert 1 - JITTER <= min(backoffs) < 1 - JITTER / 2 < 1 + JITTER / 2 < max(backoffs) <= 1 + JITTER


def test_a_repeated_line_is_logged_at_once_and_then_once_in_an_interval(hand: Hand) -> None:
    lines = LogEvery(60.0, hand)
    assert [lines.try_acquire(), lines.try_acquire()] == [True, False]
    hand.now = 60.0
    lines.restart()
    hand.now = 119.9
    assert not lines.try_acquire()
    hand.now = 120.0
    assert lines.try_acquire()
