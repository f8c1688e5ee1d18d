"""Figures of a report: rates from samples, its text, and how much of a backlog is done."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source.lag.model import WINDOW, Backlog, PartitionLag, Rates, RateWindow, Sample, duration
from spark_group_source.offsets import TopicPartition
from tests.unit.lag.events import ends, offset, progress, report, sample, source

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_lag_is_the_end_offset_minus_the_position_and_never_negative() -> None:
    partitions = Sample(0.0, {P1: 10, P0: 4}, {P0: 7, P1: 8}).partitions()
    assert partitions == (PartitionLag(P0, 4, 7), PartitionLag(P1, 10, 8))
    assert [each.lag for each in partitions] == [3, 0]


def test_a_partition_without_end_offset_or_position_has_no_lag() -> None:
    mixed = Sample(0.0, {P0: 4}, {P1: 8})
    assert (mixed.partitions(), mixed.unknown()) == ((), (P0,))


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


def test_a_report_has_the_sum_and_the_largest_lag() -> None:
    three = report(3, 40, 0)
    assert (three.total, three.largest) == (43, PartitionLag(TopicPartition("orders", 1), 100, 140))
    assert (report().total, report().largest) == (0, None)


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
    ):
        assert str(lag_report) == f"q: {text}"


def test_durations_have_suitable_units() -> None:
    texts = {0.4: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2.0 h", 172_800: "2.0 d"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


def after(*batches: tuple[dict[str, Any] | str, dict[str, Any] | str | None]) -> tuple[int, int | None]:
    """Done and total after these batches, each an offset and the end offsets."""
    backlog = Backlog()
    for end, latest in batches:
        backlog.update(progress(source(end, latest)))
    return backlog.done, backlog.total


def test_the_total_is_the_records_that_existed_when_the_first_batch_was_planned() -> None:
    assert after() == (0, None)
    end, latest = offset(t_0=(10, 15), t_1=(0, 5)), ends(t_0=30, t_1=5)
    assert after((end, latest)) == (10, 25)
    # Spark Connect has texts.
    assert after((json.dumps(end), json.dumps(latest)), ("no JSON", "[]")) == (10, 25)


def test_later_records_are_not_part_of_the_backlog_unless_the_first_batch_reads_them() -> None:
    first, last = (offset(t_0=(0, 10)), ends(t_0=100)), (offset(t_0=(90, 150)), ends(t_0=900))
    assert after(first, last) == (100, 100)
    assert after((offset(t_0=(0, 12)), ends(t_0=10))) == (12, 12)
    assert after((offset(t_0=(0, 10)), None)) == (10, 10), "without end offsets it is the batches so far"


def test_revoked_partitions_leave_the_backlog_and_assigned_partitions_join_it() -> None:
    first = (offset(t_0=(0, 10), t_1=(0, 10)), ends(t_0=100, t_1=100))
    revoked = (offset(t_0=(10, 20), t_1=(10, 10)), ends(t_0=100))
    assert after(first, revoked) == (30, 110)
    assigned = (offset(t_0=(20, 100), t_1=(10, 10), u_0=(5, 6)), ends(t_0=100, u_0=8))
    assert after(first, revoked, assigned) == (111, 113)


def test_a_rewind_reduces_the_done_part() -> None:
    assert after((offset(t_0=(50, 60)), ends(t_0=90)), (offset(t_0=(40, 55)), ends(t_0=90))) == (5, 40)
    assert after((offset(t_0=(50, 60)), ends(t_0=90)), (offset(t_0=(0, 5)), ends(t_0=90))) == (0, 40)


def test_each_source_of_this_package_counts_and_other_sources_do_not() -> None:
    backlog = Backlog()
    first, second = source(offset(t_0=(0, 1)), ends(t_0=4)), source(offset(t_0=(0, 2)), ends(t_0=4))
    backlog.update(progress(source("7", "9"), first, second))
    assert (backlog.done, backlog.total) == (3, 8)
