"""Lookups of the end offsets of partitions without a leader, beside those of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DataLoss
from spark_group_source.offsets import TopicPartition
from spark_group_source.query import end_offsets
from spark_group_source.query.end_offsets import EndOffsets
from spark_group_source.wire.offset_lookup import ListedOffsets
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand
from tests.unit.query.conftest import at, partitions

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        yield running


def until(hand: Hand, condition: Callable[[], bool], seconds: float) -> None:
    began = hand.now
    while not condition():
        assert hand.now - began < seconds
        hand.now += 0.01


def test_a_partition_without_a_leader_delays_the_others_little(fake: FakeKafka, ends: EndOffsets, hand: Hand) -> None:
    positions = partitions(fake, 2)
    ends.look_up(positions)
    fake.logs["t"][0].leader = None
    ends._cluster.invalidate_topics(["t"])
    before, began, stalled = len(fake.requests), hand.now, 0.0
    while hand.now - began < 10.0:
        fake.produce("t", ["x"], partition=1)
        asked_at, end = hand.now, fake.logs["t"][1].end
        until(hand, lambda end=end: ends.look_up(at({A: 0, B: end - 1}))[B] == end, 60.0)  # type: ignore[misc]
        stalled += max(0.0, hand.now - asked_at - 0.1)
    assert stalled < 2.5
    assert sum(api == "Metadata" for api, _, _ in fake.requests[before:]) < 20
    fake.logs["t"][0].leader = 1
    fake.produce("t", ["x"], partition=0)
    until(hand, lambda: ends.look_up(positions)[A] == 1, 10.0)


def test_a_partition_deleted_while_it_has_no_leader_is_data_loss(fake: FakeKafka, ends: EndOffsets, hand: Hand) -> None:
    positions = partitions(fake, 2)
    fake.logs["t"][0].leader = None
    assert ends.look_up(positions) == {B: 0}
    del fake.logs["t"][0]
    with pytest.raises(DataLoss):
        until(hand, lambda: A in ends.look_up(positions), 10.0)


def test_a_leader_that_hangs_takes_at_most_a_quarter_of_the_time_after_the_first_lookup(
    ends: EndOffsets, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = True
    looks: list[float] = []

    def list_offsets(_: Any, wanted: Mapping[TopicPartition, int], *, deadline: Deadline, **__: Any) -> Any:
        if A not in wanted or not hung:
            return ListedOffsets(dict.fromkeys(wanted, 7))
        looks.append(deadline.remaining())
        hand.now = deadline.at
        if B not in wanted:
            raise BrokerUnavailable("It hangs.")
        return ListedOffsets({B: 7})

    monkeypatch.setattr(end_offsets, "list_offsets", list_offsets)
    assert ends.look_up(at({A: 0, B: 0})) == {B: 7}
    until(hand, lambda: ends.look_up(at({A: 0, B: 0})) != {B: 7} or hand.now > 300.0, 400.0)
    assert looks[:5] == [10.0, 1.0, 2.0, 4.0, 8.0]
    assert sum(looks[1:]) < 300.0 * 0.26
    hung = False
    until(hand, lambda: A in ends.look_up(at({A: 0, B: 0})), 31.0)


def test_a_partition_with_a_new_leader_is_found_beside_others(fake: FakeKafka, ends: EndOffsets, hand: Hand) -> None:
    positions = partitions(fake, 2)
    fake.logs["t"][0].leader = None
    assert ends.look_up(positions) == {B: 0}
    fake.logs["t"][0].leader, fake.logs["t"][1].leader = 1, None
    ends._cluster.invalidate_topics(["t"])
    until(hand, lambda: A in ends.look_up(positions), 10.0)
