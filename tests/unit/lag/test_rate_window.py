"""Rates from samples."""

from __future__ import annotations

import pytest

from spark_group_source.lag.model import Rates, Sample
from spark_group_source.lag.rate_window import WINDOW, RateWindow
from spark_group_source.offsets import TopicPartition
from tests.unit.lag.events import sample

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def rates(*samples: Sample, seconds: float = WINDOW) -> list[Rates]:
    """The rates after each sample."""
    window = RateWindow(seconds)
    return [window.add(each) for each in samples]


def test_arrivals_while_an_end_offset_was_unknown_count_when_it_is_known_again() -> None:
    samples = sample(0.0, 0, 50), Sample(1.0, {P0: 10}, {}), sample(2.0, 20, 90)
    assert rates(*samples) == [Rates(None, None), Rates(10.0, 0.0), Rates(10.0, 20.0)]


def test_rates_are_averages_over_the_window_without_older_samples() -> None:
    samples = sample(0.0, 0, 0), sample(5.0, 1000, 0), sample(10.0, 1000, 100), sample(15.0, 1000, 100)
    assert rates(*samples, seconds=10.0) == [Rates(), Rates(200.0, 0.0), Rates(100.0, 10.0), Rates(0.0, 10.0)]


def test_two_samples_further_apart_than_the_window_are_still_compared() -> None:
    assert rates(sample(0.0, 0, 0), sample(1.0, 7, 7), sample(101.0, 207, 107), seconds=10.0)[-1] == Rates(2.0, 1.0)


def test_assigned_and_revoked_partitions_are_no_progress() -> None:
    before = Sample(0.0, {P0: 10}, {P0: 10})
    assigned = Sample(1.0, {P0: 10, P1: 9000}, {P0: 10, P1: 9000})
    revoked = Sample(2.0, {P1: 9002}, {P1: 9004})
    back = Sample(4.0, {P0: 5000, P1: 9002}, {P0: 5000, P1: 9004})
    assert rates(before, assigned, revoked, back) == [Rates(), Rates(0.0, 0.0), Rates(1.0, 2.0), Rates(0.5, 1.0)]


def test_a_rewind_is_not_negative_progress() -> None:
    samples = sample(0.0, 100, 100), sample(1.0, 0, 100), sample(2.0, 50, 100)
    assert rates(*samples) == [Rates(), Rates(0.0, 0.0), Rates(25.0, 0.0)]


@pytest.mark.parametrize("at", [5.0, 4.0])
def test_a_clock_that_stops_or_goes_back_starts_a_new_window(at: float) -> None:
    samples = sample(0.0, 0, 0), sample(5.0, 10, 10), sample(at, 20, 20), sample(at + 1, 21, 22)
    assert rates(*samples) == [Rates(), Rates(2.0, 2.0), Rates(), Rates(1.0, 2.0)]
