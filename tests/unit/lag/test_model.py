"""Figures of a report, and its text."""

from __future__ import annotations

import math
from dataclasses import replace

from spark_group_source.lag.model import PartitionLag, Rates, Sample, duration
from spark_group_source.offsets import TopicPartition
from tests.unit.lag.events import report, with_ages

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_lag_is_the_end_offset_minus_the_position_and_never_negative() -> None:
    partitions = Sample(0.0, {P1: 10, P0: 4}, {P0: 7, P1: 8}).partitions()
    assert partitions == (PartitionLag(P0, 4, 7), PartitionLag(P1, 10, 8))
    assert [each.lag for each in partitions] == [3, 0]


def test_a_partition_without_end_offset_or_position_has_no_lag() -> None:
    mixed = Sample(0.0, {P0: 4}, {P1: 8})
    assert (mixed.partitions(), mixed.unknown()) == ((), (P0,))


def test_a_partition_has_the_age_of_its_sample() -> None:
    aged = Sample(0.0, {P0: 4, P1: 1}, {P0: 8, P1: 8}, {P1: 2.5}).partitions()
    assert [each.age for each in aged] == [None, 2.5]


def test_a_report_has_the_sum_and_the_largest_lag() -> None:
    three = report(3, 40, 0)
    assert (three.total, three.largest) == (43, PartitionLag(TopicPartition("orders", 1), 100, 140))
    assert (report().total, report().largest) == (0, None)


def test_a_report_has_the_oldest_known_age_and_the_partitions_without_one() -> None:
    aged = with_ages(report(3, 40, 0, 7), 5.0, None, 0.0, 9.0)
    silent = TopicPartition("orders", 9)
    assert aged.oldest == aged.partitions[3]
    assert aged.unknown_ages == (TopicPartition("orders", 1),)
    assert replace(aged, unknown=(silent,)).unknown_ages == (TopicPartition("orders", 1), silent)
    assert (report(3).oldest, report().oldest) == (None, None), "progress has no ages"
    caught_up = with_ages(report(0), 0.0)
    assert (caught_up.oldest, caught_up.unknown_ages) == (caught_up.partitions[0], ())


def test_the_time_to_catch_up_is_the_lag_divided_by_the_difference_of_the_rates() -> None:
    assert report(100, rates=Rates(30.0, 10.0)).catch_up == 5.0
    assert report(100, rates=Rates(10.0, 10.0)).catch_up == math.inf
    assert report(0).catch_up == 0.0
    assert report(100).catch_up is None


def test_the_text_of_a_report_is_one_line() -> None:
    for lag_report, text in (
        (report(), "no partitions"),
        (
            report(1000, 5, rates=Rates(50.0, 40.0)),
            "lag 1,005 in 2 partition(s), most in orders-0 (1,000), 50/s processed, 40/s arrived, caught up in 100 s",
        ),
        (
            report(7, rates=Rates(0.0, 2.0)),
            "lag 7 in 1 partition(s), most in orders-0 (7), 0/s processed, 2/s arrived, not catching up",
        ),
        (
            replace(report(7, rates=Rates(3.0, 2.0)), unknown=(TopicPartition("orders", 9),)),
            "lag at least 7 in 1 partition(s), unknown in 1 (orders-9), most in orders-0 (7), 3/s processed,"
            " 2/s arrived",
        ),
        (
            with_ages(report(7, 0, rates=Rates(3.0, 2.0)), 299.6, 0.0),
            "lag 7 in 2 partition(s), most in orders-0 (7), oldest record 5 min old, 3/s processed, 2/s arrived, caught"
            " up in 7 s",
        ),
        (
            with_ages(report(7, 1), 8.0, None),
            "lag 8 in 2 partition(s), most in orders-0 (7), oldest record at least 8 s old",
        ),
        (with_ages(report(0), 0.0), "lag 0 in 1 partition(s)"),
    ):
        assert str(lag_report) == f"q: {text}"


def test_durations_have_suitable_units() -> None:
    texts = {0.4: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2.0 h", 172_800: "2.0 d"}
    assert {seconds: duration(seconds) for seconds in texts} == texts
