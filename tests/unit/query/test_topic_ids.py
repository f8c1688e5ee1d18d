"""Topic ids: whether a topic is still the one that a query reads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest

from spark_group_source.clock import monotonic
from spark_group_source.group.settings import Subscription
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import topics
from spark_group_source.query.topics import TopicIds, TopicValidator
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", 1)
        yield running


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
    with closing(Cluster(parse_options(given).with_client_id("test").wire)) as opened:
        yield opened


@pytest.fixture
def ids(cluster: Cluster, hand: Hand) -> TopicIds:
    return TopicIds(cluster, 300.0, hand)


def recreate(fake: FakeKafka) -> UUID:
    """Returns the former id."""
    former = fake.ids["t"]
    fake.delete_topic("t")
    fake.create_topic("t", 1)
    return former


def lags(fake: FakeKafka, former: UUID | None = None) -> None:
    """Broker 1 knows the topic under its former id, or not at all."""

    def edit(answer: Any) -> None:
        for topic in answer.topics:
            if former:
                topic.topic_id = former
            else:
                topic.error_code, topic.partitions = 3, []

    fake.next("Metadata", Fault(edit=edit, broker=1), times=1000)


def test_a_topic_that_one_broker_does_not_know_is_not_deleted(
    fake: FakeKafka, cluster: Cluster, ids: TopicIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "DELETED_INTERVAL", 0.0)
    lags(fake)
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
    lags(fake, former)
    assert not ids.recreated({"t"})
    assert ids.of({"t"}) == {}
    fake.clear_faults()
    assert ids.of({"t"}) == {"t": str(fake.ids["t"])}
    lags(fake, former)
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


def test_a_query_starts_if_one_broker_does_not_know_its_topic_and_the_other_answers_late(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "UNKNOWN_TOPIC_TIMEOUT", 0.0)
    lags(fake)
    fake.next("Metadata", Fault(drop="before", broker=2), times=5)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions


def test_a_topic_without_leaders_at_the_start_has_the_whole_time_to_get_them(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "UNKNOWN_TOPIC_TIMEOUT", 0.0)

    def without_leaders(answer: Any) -> None:
        for topic in answer.topics:
            topic.error_code, topic.partitions = 5, []

    fake.next("Metadata", Fault(edit=without_leaders), times=8)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions


def test_a_broker_that_is_silent_at_the_start_leaves_time_to_ask_one_that_lags_again(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, seconds in (("UNKNOWN_TOPIC_TIMEOUT", 0.0), ("WARN_AFTER", 0.3), ("START_TIMEOUT", 3.0)):
        monkeypatch.setattr(topics, limit, seconds)
    monkeypatch.setattr("spark_group_source.wire.cluster.MIN_BROKER_TIMEOUT", 0.1)
    caught_up = time.monotonic() + 1.0

    def lag(answer: Any) -> None:
        for topic in answer.topics if time.monotonic() < caught_up else ():
            topic.error_code, topic.partitions = 3, []

    fake.next("Metadata", Fault(edit=lag, broker=1), times=1000)
    fake.next("Metadata", Fault(silent=True, broker=2), times=1000)
    assert TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())["t"].partitions
