"""Topic ids: whether a topic is still the one that a query reads."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from spark_group_source.query import topic_ids
from spark_group_source.query.topic_ids import TopicIds, ids_all_brokers_agree_on
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.unit.query.lagging_brokers import LAGS


@pytest.fixture
def ids(cluster: Cluster, hand: Hand) -> TopicIds:
    return TopicIds(cluster, 300.0, hand)


def recreate(fake: FakeKafka) -> UUID:
    """Returns the former id."""
    former = fake.ids["t"]
    fake.delete_topic("t")
    fake.create_topic("t", 1)
    return former


def has_former_id(fake: FakeKafka, former: UUID) -> None:
    """Broker 1 knows the topic under its former id."""

    def edit(answer: Any) -> None:
        for topic in answer.topics:
            topic.topic_id = former

    fake.next("Metadata", Fault(edit=edit, broker=1), times=1000)


def test_a_topic_that_one_broker_does_not_know_is_not_deleted(
    fake: FakeKafka, cluster: Cluster, ids: TopicIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_ids, "DELETED_INTERVAL", 0.0)
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
    assert ids.ids_of({"t"}) == {}
    fake.clear_faults()
    assert ids.ids_of({"t"}) == {"t": str(fake.ids["t"])}
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
    ("known", "agreed"),
    [
        ({("t", "a")}, {"t": "a"}),
        ({("t", "a"), ("t", "b")}, {}),
        ({("t", "a"), ("t", "")}, {"t": "a"}),
        ({("t", "a"), ("t", "b"), ("t", "")}, {}),
        ({("t", "")}, {"t": ""}),
        ({("t", "a"), ("t", "b"), ("u", "c")}, {"u": "c"}),
        (set[tuple[str, str]](), {}),
    ],
    ids=["one id", "two ids", "an upgrade", "two ids in an upgrade", "old brokers", "two topics", "unknown to all"],
)
def test_an_id_holds_if_all_brokers_that_know_one_agree_on_it(
    known: set[tuple[str, str]], agreed: dict[str, str]
) -> None:
    assert ids_all_brokers_agree_on(known) == agreed
