"""Topic ids: whether a topic is still the one that a query reads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from spark_group_source.clock import monotonic
from spark_group_source.errors import TopicError
from spark_group_source.group.subscription import Subscription
from spark_group_source.query import topics
from spark_group_source.query.topics import TopicIds, TopicValidator
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand


@pytest.fixture
def ids(cluster: Cluster, hand: Hand) -> TopicIds:
    return TopicIds(cluster, 300.0, hand)


def recreate(fake: FakeKafka) -> UUID:
    """Returns the former id."""
    former = fake.ids["t"]
    fake.delete_topic("t")
    fake.create_topic("t", 1)
    return former


def fails_with(error_code: int, until: float = math.inf) -> Callable[[Any], None]:
    """A response in which no topic has partitions."""

    def edit(answer: Any) -> None:
        for topic in answer.topics if time.monotonic() < until else ():
            topic.error_code, topic.partitions = error_code, []

    return edit


LAGS = Fault(edit=fails_with(3), broker=1)
"""Broker 1 does not know the topic."""


def has_former_id(fake: FakeKafka, former: UUID) -> None:
    """Broker 1 knows the topic under its former id."""

    def edit(answer: Any) -> None:
        for topic in answer.topics:
            topic.topic_id = former

    fake.next("Metadata", Fault(edit=edit, broker=1), times=1000)


def test_a_topic_that_one_broker_does_not_know_is_not_deleted(
    fake: FakeKafka, cluster: Cluster, ids: TopicIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "DELETED_INTERVAL", 0.0)
    fake.next("Metadata", LAGS, times=1000)
    for _ in range(20):  # whichever broker is asked first
        cluster.close()
        cluster.invalidate_topics({"t"})
        assert ids.deleted({"t"}) == set()
    fake.clear_faults()
    fake.delete_topic("t")
    cluster.invalidate_topics({"t"})
    assert ids.deleted({"t"}) == {"t"}


def test_one_broker_with_the_former_id_decides_nothing(fake: FakeKafka, cluster: Cluster, ids: TopicIds) -> None:
    former = recreate(fake)
    has_former_id(fake, former)
    assert not ids.recreated({"t"})
    assert ids.of({"t"}) == {}
    fake.clear_faults()
    assert ids.of({"t"}) == {"t": str(fake.ids["t"])}
    has_former_id(fake, former)
    assert ids.under_other_ids({"t"}) == {"t"}
    for _ in range(20):  # whichever broker is asked first
        cluster.invalidate_topics({"t"})
        assert ids.recreated({"t"}) == {}
    recreate(fake)
    fake.clear_faults()
    fake.next("Metadata", Fault(drop="before", broker=1), times=1000)
    assert ids.recreated({"t"}) == {}, "the other broker may know it under the former id"
    fake.clear_faults()
    cluster.invalidate_topics({"t"})
    assert ids.recreated({"t"}) == {"t": str(fake.ids["t"])}


@pytest.mark.parametrize(
    "faults",
    [{LAGS: 1000, Fault(drop="before", broker=2): 5}, {Fault(edit=fails_with(5)): 8}],
    ids=["one broker does not know its topic and the other answers late", "no leaders at first"],
)
def test_a_query_starts_whose_topic_is_found_late(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, faults: dict[Fault, int]
) -> None:
    monkeypatch.setattr(topics, "UNKNOWN_TOPIC_TIMEOUT", 0.0)
    for fault, times in faults.items():
        fake.next("Metadata", fault, times=times)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions


def test_a_broker_that_is_silent_at_the_start_leaves_time_to_ask_one_that_lags_again(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, seconds in (("UNKNOWN_TOPIC_TIMEOUT", 0.0), ("WARN_AFTER", 0.3), ("START_TIMEOUT", 3.0)):
        monkeypatch.setattr(topics, limit, seconds)
    monkeypatch.setattr("spark_group_source.wire.cluster.MIN_BROKER_TIMEOUT", 0.1)
    fake.next("Metadata", Fault(edit=fails_with(3, until=time.monotonic() + 1.0), broker=1), times=1000)
    fake.next("Metadata", Fault(silent=True, broker=2), times=1000)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions


def test_a_topic_without_leaders_is_named_although_the_time_ends_between_two_lookups(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand()
    monkeypatch.setattr(time, "sleep", hand.sleep)
    monkeypatch.setattr(topics, "START_TIMEOUT", 3.1)
    monkeypatch.setattr(topics, "UNKNOWN_TOPIC_TIMEOUT", 0.0)
    fake.next("Metadata", Fault(edit=fails_with(5), delay=0.005), times=10_000)
    with pytest.raises(TopicError, match=r"Topic 't' cannot be read: the brokers answer 5 \(LEADER_NOT_AVAILABLE"):
        TopicValidator(cluster, Subscription(("t",)), True, hand).find(logged=())
    assert 1.0 < hand.now < topics.START_TIMEOUT
