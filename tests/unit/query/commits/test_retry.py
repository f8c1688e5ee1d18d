"""When what failed is tried again, on a clock that is turned by hand."""

from __future__ import annotations

from spark_group_source.query.commits.retry import Retry
from tests.unit.hand_clock import Hand


def test_one_thread_tries_at_a_time_and_the_next_try_is_an_interval_after_the_last_has_ended(hand: Hand) -> None:
    retry = Retry(1.0, hand)
    assert retry.due()
    assert not retry.due(), "somebody else is at it"
    hand.now = 0.9
    retry.later()
    hand.now = 1.8
    assert not retry.due()
    hand.now = 1.9
    assert retry.due()
