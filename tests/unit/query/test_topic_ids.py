"""Which incarnation of a topic a query takes for the one that it reads."""

from __future__ import annotations

from spark_group_source.options.parsing import parse_options
from spark_group_source.options.wire import wire_options
from spark_group_source.query.topic_ids import TopicIds
from spark_group_source.testing.fake import FakeKafka
from spark_group_source.wire.cluster import Cluster
from tests.unit.hand_clock import Hand


def test_the_id_of_a_topic_that_was_not_read_before_is_asked_for_and_kept(hand: Hand) -> None:
    with FakeKafka() as fake:
        fake.create_topic("t", 1)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
        cluster = Cluster(wire_options(parse_options(given), "test"))
        ids = TopicIds(cluster, 300.0, hand)
        try:
            assert not ids.made_anew({"t"})  # what is told here is old when the topic comes to be read
            fake.delete_topic("t")
            fake.create_topic("t", 1)
            read = ids.of({"t"})
            assert read == {"t": str(fake.ids["t"])}
            fake.delete_topic("t")
            fake.create_topic("t", 1)
            cluster.forget({"t"})
            assert ids.of({"t"}) == read
        finally:
            cluster.close()
