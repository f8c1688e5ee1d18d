"""Topic ids: whether a topic is still the one that a query reads."""

from __future__ import annotations

from typing import Any

import pytest

from spark_group_source.clock import monotonic
from spark_group_source.group.settings import Subscription
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.topics import TopicIds, TopicValidator
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand


def test_the_id_of_a_new_topic_is_looked_up_once_and_kept(hand: Hand) -> None:
    with FakeKafka() as fake:
        fake.create_topic("t", 1)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
        cluster = Cluster(parse_options(given).with_client_id("test").wire)
        ids = TopicIds(cluster, 300.0, hand)
        try:
            assert not ids.recreated({"t"})  # these ids are out of date when the query reads the topic
            fake.delete_topic("t")
            fake.create_topic("t", 1)
            read = ids.of({"t"})
            assert read == {"t": str(fake.ids["t"])}
            fake.delete_topic("t")
            fake.create_topic("t", 1)
            cluster.invalidate_topics({"t"})
            assert ids.of({"t"}) == read
        finally:
            cluster.close()


def test_a_topic_that_one_broker_does_not_know_is_not_deleted(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_group_source.query.topics.DELETED_INTERVAL", 0.0)

    def unknown(answer: Any) -> None:
        for topic in answer.topics:
            topic.error_code, topic.partitions = 3, []

    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t", 1)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
        cluster = Cluster(parse_options(given).with_client_id("test").wire)
        ids = TopicIds(cluster, 300.0, hand)
        try:
            fake.next("Metadata", Fault(edit=unknown, broker=1), times=1000)
            for _ in range(20):  # whichever broker is asked first
                cluster.close()
                cluster.invalidate_topics({"t"})
                assert ids.deleted({"t"}) == set()
            fake.clear_faults()
            fake.delete_topic("t")
            cluster.invalidate_topics({"t"})
            assert ids.deleted({"t"}) == {"t"}
        finally:
            cluster.close()


def test_one_broker_with_the_former_id_decides_nothing(hand: Hand) -> None:
    def lags(answer: Any) -> None:
        for topic in answer.topics:
            topic.topic_id = former

    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t", 1)
        former = fake.ids["t"]
        fake.delete_topic("t")
        fake.create_topic("t", 1)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
        cluster = Cluster(parse_options(given).with_client_id("test").wire)
        ids = TopicIds(cluster, 300.0, hand)
        try:
            fake.next("Metadata", Fault(edit=lags, broker=1), times=1000)
            assert not ids.recreated({"t"})
            assert ids.of({"t"}) == {}
            fake.clear_faults()
            assert ids.of({"t"}) == {"t": str(fake.ids["t"])}
            fake.next("Metadata", Fault(edit=lags, broker=1), times=1000)
            for _ in range(20):  # whichever broker is asked first
                cluster.invalidate_topics({"t"})
                assert ids.recreated({"t"}) == {}
            former = fake.ids["t"]
            fake.delete_topic("t")
            fake.create_topic("t", 1)
            fake.clear_faults()
            fake.next("Metadata", Fault(drop="before", broker=1), times=1000)
            assert ids.recreated({"t"}) == {}, "the other broker may know it under the former id"
            fake.clear_faults()
            cluster.invalidate_topics({"t"})
            assert ids.recreated({"t"}) == {"t": str(fake.ids["t"])}
        finally:
            cluster.close()


def test_a_query_starts_if_one_broker_does_not_know_its_topic_and_the_other_answers_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_group_source.query.topics.UNKNOWN_TOPIC_TIMEOUT", 0.0)

    def unknown(answer: Any) -> None:
        for topic in answer.topics:
            topic.error_code, topic.partitions = 3, []

    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t", 1)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
        cluster = Cluster(parse_options(given).with_client_id("test").wire)
        try:
            fake.next("Metadata", Fault(edit=unknown, broker=1), times=1000)
            fake.next("Metadata", Fault(drop="before", broker=2), times=5)
            found = TopicValidator(cluster, Subscription(("t",)), True, monotonic).find(logged=())
            assert found["t"].partitions
        finally:
            cluster.close()
