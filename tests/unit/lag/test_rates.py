"""Rates from samples."""

from __future__ import annotations

import pytest

from spark_group_source.lag.model import PartitionLag, Rates, RateWindow, Sample
from spark_group_source.offsets import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def sample(at: float, position: int, end: int) -> Sample:
    return Sample(at, {P0: position}, {P0: end})


def test_lag_is_the_end_offset_minus_the_position_and_never_negative() -> None:
    partitions = Sample(0.0, {P1: 10, P0: 4}, {P0: 7, P1: 8}).partitions()
    assert partitions == (PartitionLag(P0, 4, 7), PartitionLag(P1, 10, 8))
    assert [each.lag for each in partitions] == [3, 0]


def test_a_partition_without_end_offset_or_position_has_no_lag() -> None:
    mixed = Sample(0.0, {P0: 4}, {P1: 8})
    assert (mixed.partitions(), mixed.unknown()) == ((), (P0,))


def test_arrivals_while_an_end_offset_was_unknown_count_when_it_is_known_again() -> None:
    window = RateWindow()
    window.add(sample(0.0, 0, 50))
    assert window.add(Sample(1.0, {P0: 10}, {})) == Rates(10.0, 0.0)
    assert window.add(sample(2.0, 20, 90)) == Rates(10.0, 20.0)


def test_two_samples_have_rates_and_one_has_none() -> None:
    window = RateWindow()
    assert window.add(sample(100.0, 0, 50)) == Rates(None, None)
    assert window.add(sample(102.0, 30, 60)) == Rates(15.0, 5.0)


def test_rates_are_averages_over_the_window_without_older_samples() -> None:
    window = RateWindow(seconds=10.0)
    window.add(sample(0.0, 0, 0))
    assert window.add(sample(5.0, 1000, 0)) == Rates(200.0, 0.0)
    assert window.add(sample(10.0, 1000, 100)) == Rates(100.0, 10.0)
    assert window.add(sample(15.0, 1000, 100)) == Rates(0.0, 10.0)


def test_two_samples_further_apart_than_the_window_are_still_compared() -> None:
    window = RateWindow(seconds=10.0)
    window.add(sample(0.0, 0, 0))
    window.add(sample(1.0, 7, 7))
    assert window.add(sample(101.0, 207, 107)) == Rates(2.0, 1.0)


def test_assigned_and_revoked_partitions_are_no_progress() -> None:
    window = RateWindow()
    window.add(Sample(0.0, {P0: 10}, {P0: 10}))
    assert window.add(Sample(1.0, {P0: 10, P1: 9000}, {P0: 10, P1: 9000})) == Rates(0.0, 0.0)
    assert window.add(Sample(2.0, {P1: 9002}, {P1: 9004})) == Rates(1.0, 2.0)
    assert window.add(Sample(4.0, {P0: 5000, P1: 9002}, {P0: 5000, P1: 9004})) == Rates(0.5, 1.0)


def test_a_rewind_is_not_negative_progress() -> None:
    window = RateWindow()
    window.add(sample(0.0, 100, 100))
    assert window.add(sample(1.0, 0, 100)) == Rates(0.0, 0.0)
    assert window.add(sample(2.0, 50, 100)) == Rates(25.0, 0.0)


@pytest.mark.parametrize("at", [5.0, 4.0])
def test_a_clock_that_stops_or_goes_back_starts_a_new_window(at: float) -> None:
    window = RateWindow()
    window.add(sample(0.0, 0, 0))
    window.add(sample(5.0, 10, 10))
    assert window.add(sample(at, 20, 20)) == Rates(None, None)
    assert window.add(sample(at + 1, 21, 22)) == Rates(1.0, 2.0)
