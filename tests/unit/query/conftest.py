"""Fixtures for tests on a fake Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.end_offsets import EndOffsets
from spark_group_source.query.owned_partition import Owned, OwnedPartition
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand
from tests.unit.query.world import World
from tests.unit.wire_options import wire_options


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Two brokers, and a topic of one partition."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", 1)
        yield running


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    with closing(Cluster(wire_options(fake))) as opened:
        yield opened


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr("spark_group_source.query.starts.leaders.list_offsets", made.list_offsets)
    return made


@pytest.fixture
def ends(fake: FakeKafka, hand: Hand) -> Iterator[EndOffsets]:
    given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
    options = parse_options(given)
    cluster = Cluster(options.with_client_id("test").wire)
    yield EndOffsets(cluster, options, hand)
    cluster.close()


def partitions(fake: FakeKafka, count: int) -> Owned:
    """Positions at the start of that many empty partitions."""
    fake.create_topic("t", count)
    return at({TopicPartition("t", number): 0 for number in range(count)})


def at(positions: Offsets, topic_id: str = "") -> Owned:
    """Owned partitions with these positions in the topic with this id."""
    return {tp: OwnedPartition(position=offset, topic_id=topic_id) for tp, offset in positions.items()}
