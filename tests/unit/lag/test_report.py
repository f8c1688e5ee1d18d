"""Figures and text of a report."""

from __future__ import annotations

import math

import pytest

from spark_group_source.lag.model import LagReport, PartitionLag, Rates, duration
from spark_group_source.offsets import TopicPartition

UNKNOWN = TopicPartition("orders", 9)


def report(*lags: int, rates: Rates = Rates(), unknown: bool = False) -> LagReport:  # noqa: B008 -- it is frozen
    partitions = tuple(PartitionLag(TopicPartition("orders", at), 100, 100 + lag) for at, lag in enumerate(lags))
    return LagReport("to-lake", "run", 0.0, partitions, rates, unknown=(UNKNOWN,) if unknown else ())


def test_a_report_has_the_sum_and_the_largest_lag() -> None:
    three = report(3, 40, 0)
    assert three.total == 43
    assert three.largest == PartitionLag(TopicPartition("orders", 1), 100, 140)
    assert report().total == 0
    assert report().largest is None


@pytest.mark.parametrize(
    ("lag", "processed", "arrived", "seconds"),
    [
        (100, 30.0, 10.0, 5.0),
        (100, 10.0, 10.0, math.inf),
        (100, 0.0, 10.0, math.inf),
        (0, 10.0, 10.0, 0.0),
        (0, None, None, 0.0),
        (100, None, None, None),
    ],
)
def test_the_time_to_catch_up_is_the_lag_divided_by_the_difference_of_the_rates(
    lag: int, processed: float | None, arrived: float | None, seconds: float | None
) -> None:
    assert report(lag, rates=Rates(processed, arrived)).catch_up == seconds


@pytest.mark.parametrize(
    ("lag_report", "text"),
    [
        (report(), "to-lake: no partitions"),
        (report(0, 0), "to-lake: lag 0 in 2 partition(s)"),
        (
            report(1000, 5, rates=Rates(50.0, 40.0)),
            "to-lake: lag 1,005 in 2 partition(s), most in orders-0 (1,000), 50/s processed, 40/s arrived,"
            " caught up in 100 s",
        ),
        (
            report(7, rates=Rates(0.0, 2.0)),
            "to-lake: lag 7 in 1 partition(s), most in orders-0 (7), 0/s processed, 2/s arrived, not catching up",
        ),
        (
            report(7, rates=Rates(3.0, 2.0), unknown=True),
            "to-lake: lag at least 7 in 1 partition(s), unknown in 1 (orders-9), most in orders-0 (7), 3/s processed,"
            " 2/s arrived",
        ),
        (report(unknown=True), "to-lake: lag at least 0 in 0 partition(s), unknown in 1 (orders-9)"),
    ],
)
def test_the_text_of_a_report_is_one_line(lag_report: LagReport, text: str) -> None:
    assert str(lag_report) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"), (172_800, "2.0 d")],
)
def test_durations_have_suitable_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
