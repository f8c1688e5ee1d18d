"""Whether a rejection is final: the one rule for sign-ins, certificates and permissions."""

from __future__ import annotations

import pytest

from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, TopicError
from spark_group_source.grace import GRACE_PERIOD, Grace, Permission
from tests.unit.hand_clock import Hand

DENIED = TopicError("Topic 't' cannot be read.", "Grant READ.", error_code=TOPIC_AUTHORIZATION_FAILED, topics=["t"])


def test_what_never_worked_is_final_at_once(hand: Hand) -> None:
    rejection = Grace(clock=hand).record_rejection()
    assert (rejection.final, rejection.timeout) == (True, 0)


def test_what_worked_is_rejected_for_the_period_in_a_row_until_that_is_final(hand: Hand) -> None:
    grace = Grace(clock=hand)
    grace.record_success()
    for hand.now in (10.0, 200.0, 309.9):
        assert not grace.record_rejection().final
    hand.now = 10.0 + GRACE_PERIOD
    rejection = grace.record_rejection()
    assert (rejection.final, rejection.lasted) == (True, GRACE_PERIOD)
    grace.record_success()
    assert not grace.record_rejection().final


def test_time_without_an_answer_does_not_count(hand: Hand) -> None:
    grace = Grace(clock=hand)
    grace.record_success()
    grace.record_rejection()
    hand.now = GRACE_PERIOD + 1.0
    assert grace.record_rejection().lasted == 0.0, "all brokers were down"
    hand.now += 100.0
    assert grace.record_rejection(responded_at=hand.now - 1.0).lasted == 0.0, "another broker accepts"


def test_a_permission_that_is_denied_is_logged_at_once_and_each_minute(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    permission = Permission("READ on topic 't'", "User:alice", clock=hand)
    with pytest.raises(TopicError, match=r"^\[TOPIC_UNAVAILABLE\] Topic 't' cannot be read\. Grant READ\."):
        permission.record_denied(DENIED)
    permission.record_granted()
    for _ in range(62):
        permission.record_denied(DENIED)
        hand.now += 1.0
    assert caplog.text.count("User:alice no longer has READ on topic 't'; the query fails in") == 2
    permission.record_granted()
    assert "User:alice has READ on topic 't' again" in caplog.text
    permission.record_denied(DENIED)
    assert caplog.text.count("the query fails in 300 s unless the permission returns") == 2
    hand.now += GRACE_PERIOD
    with pytest.raises(TopicError, match=r"READ on topic 't' has been missing for 300 s\. Grant READ\.") as raised:
        permission.record_denied(DENIED)
    assert raised.value.unauthorized_topics == {"t"}


def test_an_optional_permission_never_fails_the_query(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    permission = Permission("READ on topic 't'", optional=True, clock=hand)
    for _ in range(3):
        permission.record_denied(DENIED)
        hand.now += GRACE_PERIOD / 2
    assert caplog.text.count("has no READ on topic 't'; the query continues without this topic and checks") == 3
