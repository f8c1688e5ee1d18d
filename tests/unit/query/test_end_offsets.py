"""How often the end offsets are looked up."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from spark_group_source.offsets import TopicPartition
from spark_group_source.query.end_offsets import EndOffsets
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand
from tests.unit.query.conftest import at, partitions

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        yield running


@pytest.mark.parametrize(
    ("count", "idle_s", "least", "most"), [(2, 0.0, 13, 30), (2, 60.0, 9, 10.5), (250, 60.0, 3.6, 9)]
)
def test_lookups_are_rarer_the_longer_no_record_arrives_and_the_more_partitions_exist(
    fake: FakeKafka, ends: EndOffsets, hand: Hand, count: int, idle_s: float, least: float, most: float
) -> None:
    positions = partitions(fake, count)
    ends.look_up(positions)
    hand.now += idle_s
    before, began = len(fake.requests), hand.now
    while hand.now - began < 4.99:
        ends.look_up(positions)
        hand.now += 0.01
    assert least <= sum(api == "ListOffsets" for api, _, _ in fake.requests[before:]) / 5 <= most


def test_no_end_offset_or_epoch_of_a_topic_is_one_of_its_successor(fake: FakeKafka, ends: EndOffsets) -> None:
    positions = partitions(fake, 2)
    for log in fake.logs["t"].values():
        log.append_count(5)
    assert ends.look_up(positions) == {A: 5, B: 5}
    fake.logs["t"][0].leader = None
    ends.forget({"t"})
    assert ends.look_up(positions) == {B: 5}
    assert A not in ends.epochs


def test_an_end_found_while_the_topic_was_recreated_is_no_end_in_its_successor(
    fake: FakeKafka, ends: EndOffsets
) -> None:
    partitions(fake, 2)
    for log in fake.logs["t"].values():
        log.append_count(5)
    assert ends.look_up(at({A: 0, B: 0}, "former")) == {A: 5, B: 5}
    assert ends.look_up(at({A: 2, B: 2}, "former")) == {A: 5, B: 5}
    fake.logs["t"][0].leader = None
    assert ends.look_up(at({A: 0, B: 0}, "present")) == {B: 5}
    assert A not in ends.epochs


def test_an_outage_of_all_leaders_is_warned_of_once_a_minute(
    fake: FakeKafka, ends: EndOffsets, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    positions = partitions(fake, 2)
    ends.look_up(positions)
    for log in fake.logs["t"].values():
        log.leader = None
    began = hand.now
    while hand.now - began < 150.0:
        assert ends.look_up(positions) == {A: 0, B: 0}
    warned = [each for each in caplog.messages if each.startswith("cannot look up the end offsets of 2")]
    assert len(warned) == 3
    for log in fake.logs["t"].values():
        log.leader = 1
        log.append_count(5)
    assert ends.look_up(positions) == {A: 5, B: 5}
