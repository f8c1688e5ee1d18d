"""How often the leaders are asked where their logs end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_group_source.offsets import TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.wire import wire_options
from spark_group_source.query.log_ends import LogEnds
from spark_group_source.testing.fake import FakeKafka
from spark_group_source.wire.cluster import Cluster
from tests.unit.hand_clock import Hand


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        yield running


@pytest.fixture
def ends(fake: FakeKafka, hand: Hand) -> Iterator[LogEnds]:
    given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": "g", "subscribe": "t"}
    options = parse_options(given)
    cluster = Cluster(wire_options(options, "test"))
    yield LogEnds(cluster, options, hand)
    cluster.close()


def partitions(fake: FakeKafka, count: int) -> dict[TopicPartition, int]:
    """Positions at the beginning of that many partitions, which are empty."""
    fake.create_topic("t", count)
    return {TopicPartition("t", number): 0 for number in range(count)}


@pytest.mark.parametrize(
    ("count", "idle_s", "least", "most"),
    [(2, 0.0, 13, 30), (2, 60.0, 9, 10.5), (100, 60.0, 9, 10.5), (1000, 60.0, 1.8, 2.3), (1000, 5.0, 4, 10)],
)
def test_leaders_are_asked_less_often_the_longer_nothing_comes_and_the_more_partitions_there_are(
    fake: FakeKafka, ends: LogEnds, hand: Hand, count: int, idle_s: float, least: float, most: float
) -> None:
    positions = partitions(fake, count)
    ends.of(positions)
    hand.now += idle_s
    before, began = len(fake.requests), hand.now
    while hand.now - began < 4.99:
        ends.of(positions)
        hand.now += 0.01
    assert least <= sum(api == "ListOffsets" for api, _, _ in fake.requests[before:]) / 5 <= most


def test_soon_after_something_came_there_is_the_next_look_however_many_partitions(
    fake: FakeKafka, ends: LogEnds, hand: Hand
) -> None:
    positions = partitions(fake, 1000)
    ends.of(positions)
    began = hand.now
    fake.produce("t", ["x"], partition=7)
    assert ends.of(positions)[TopicPartition("t", 7)] == 1
    assert hand.now - began < 0.03
