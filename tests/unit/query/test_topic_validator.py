"""The topics of a query that starts: how long it looks for them, and what it says about those it does not find."""

from __future__ import annotations

import time

import pytest

from spark_group_source.clock import monotonic
from spark_group_source.errors import TopicError
from spark_group_source.group.subscription import Subscription
from spark_group_source.query import topic_validator
from spark_group_source.query.topic_validator import TopicValidator
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.unit.query.lagging_brokers import LAGS, fails_with


@pytest.mark.parametrize(
    "faults",
    [{LAGS: 1000, Fault(drop="before", broker=2): 5}, {Fault(edit=fails_with(5)): 8}],
    ids=["one broker does not know its topic and the other answers late", "no leaders at first"],
)
def test_a_query_starts_whose_topic_is_found_late(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, faults: dict[Fault, int]
) -> None:
    monkeypatch.setattr(topic_validator, "UNKNOWN_TOPIC_TIMEOUT", 0.0)
    for fault, times in faults.items():
        fake.next("Metadata", fault, times=times)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions


def test_a_broker_that_is_silent_at_the_start_leaves_time_to_ask_one_that_lags_again(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, seconds in (("UNKNOWN_TOPIC_TIMEOUT", 0.0), ("WARN_AFTER", 0.3), ("START_TIMEOUT", 3.0)):
        monkeypatch.setattr(topic_validator, limit, seconds)
    monkeypatch.setattr("spark_group_source.wire.any_broker.MIN_BROKER_TIMEOUT", 0.1)
    fake.next("Metadata", Fault(edit=fails_with(3, until=time.monotonic() + 1.0), broker=1), times=1000)
    fake.next("Metadata", Fault(silent=True, broker=2), times=1000)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions


def test_a_topic_without_leaders_is_named_although_the_time_ends_between_two_lookups(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand()
    monkeypatch.setattr(time, "sleep", hand.sleep)
    monkeypatch.setattr(topic_validator, "START_TIMEOUT", 3.1)
    monkeypatch.setattr(topic_validator, "UNKNOWN_TOPIC_TIMEOUT", 0.0)
    fake.next("Metadata", Fault(edit=fails_with(5), delay=0.005), times=10_000)
    with pytest.raises(TopicError, match=r"Topic 't' cannot be read: the brokers answer 5 \(LEADER_NOT_AVAILABLE"):
        TopicValidator(cluster, Subscription(("t",)), True, hand).find(logged=())
    assert 1.0 < hand.now < topic_validator.START_TIMEOUT


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("order", "Did you mean 'orders'? Correct 'subscribe', or create the topic."),
        ("payments", "Correct 'subscribe', or create the topic."),
    ],
)
def test_the_error_of_an_unknown_topic_suggests_an_existing_one(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, typed: str, advice: str
) -> None:
    monkeypatch.setattr(topic_validator, "UNKNOWN_TOPIC_TIMEOUT", 0.0)
    fake.create_topic("orders", 1)
    with pytest.raises(TopicError) as raised:
        TopicValidator(cluster, Subscription((typed,)), True, monotonic).find(logged=())
    assert raised.value.action == advice
