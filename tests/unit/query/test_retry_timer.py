"""When a failed operation is retried, on a clock that the test sets."""

from __future__ import annotations

from spark_group_source.query.committer import RetryTimer
from tests.unit.hand_clock import Hand


def test_one_thread_retries_at_a_time_and_an_interval_after_the_last_try_has_ended(hand: Hand) -> None:
    timer = RetryTimer(1.0, hand)
    assert timer.try_acquire()
    assert not timer.try_acquire(), "the other thread is retrying"
    hand.now = 0.9
    timer.restart()
    hand.now = 1.8
    assert not timer.try_acquire()
    hand.now = 1.9
    assert timer.try_acquire()
