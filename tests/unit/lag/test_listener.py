"""What the listener makes of a query's events."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from spark_group_source.errors import BrokerUnavailable
from spark_group_source.lag import listener as module
from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.rates import Rates
from spark_group_source.lag.report import LagReport
from spark_group_source.lag.sample import Sample
from spark_group_source.lag.throttled_probe import ThrottledProbe
from spark_group_source.offsets import TopicPartition
from tests.unit.hand_clock import Hand
from tests.unit.lag.events import QUERY, ends, idle, offset, progress, progressed, source, started, terminated

RUN = uuid.UUID(int=1)


class Reports(list[LagReport]):
    """A sink that keeps what it is given."""

    def __call__(self, report: LagReport) -> None:
        self.append(report)

    def lags(self) -> list[dict[str, int]]:
        return [{str(each.tp): each.lag for each in report.partitions} for report in self]


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def listener(reports: Reports) -> LagListener:
    return LagListener(reports)


def batch(end: object, latest: object, second: float = 0.0, run: uuid.UUID = RUN, **more: Any) -> Any:
    return progressed(progress(source(end, latest), run=run, second=second, **more))


def test_lag_after_a_batch_is_what_it_left_in_the_logs(listener: LagListener, reports: Reports) -> None:
    listener.onQueryStarted(started(RUN))
    listener.onQueryProgress(batch(offset(t_0=(2, 5), t_1=(4, 4)), ends(t_0=9, t_1=4), second=61.5))
    (report,) = reports
    assert (report.query, report.run_id, report.at, report.source, report.group) == ("q", str(RUN), 61.5, 0, None)
    assert reports.lags() == [{"t-0": 4, "t-1": 0}]
    assert (report.total, report.rates, report.catch_up) == (4, Rates(), None)


def test_rates_come_with_the_second_batch(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100)))
    listener.onQueryProgress(batch(offset(t_0=(10, 50)), ends(t_0=120), second=2))
    assert reports[-1].rates == Rates(20.0, 10.0)
    assert reports[-1].catch_up == 7.0


def test_an_idle_query_reports_where_it_stands_and_its_rates_fall(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    listener.onQueryIdle(idle(RUN, 11))
    listener.onQueryIdle(idle(RUN, 101))
    assert reports.lags() == [{"t-0": 0}] * 4
    assert [report.at for report in reports] == [0.0, 1.0, 11.0, 101.0]
    assert reports[-2].rates.processed == pytest.approx(10 / 11)
    assert reports[-1].rates == Rates(0.0, 0.0)


def test_nothing_is_told_of_a_query_that_is_idle_from_its_start(listener: LagListener, reports: Reports) -> None:
    listener.onQueryStarted(started(RUN))
    listener.onQueryIdle(idle(RUN, 10))
    listener.onQueryTerminated(terminated(RUN))
    assert reports == []


def test_a_restarted_query_begins_anew(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100)))
    listener.onQueryTerminated(terminated(RUN, "it failed"))
    again = uuid.UUID(int=2)
    listener.onQueryStarted(started(again))
    listener.onQueryIdle(idle(again, 5))
    listener.onQueryProgress(batch(offset(t_0=(10, 50)), ends(t_0=100), second=60, run=again))
    assert [report.run_id for report in reports] == [str(RUN), str(again)]
    assert reports[-1].rates == Rates()


def test_several_queries_are_told_apart_and_one_without_a_name_is_named_by_its_id(
    listener: LagListener, reports: Reports
) -> None:
    other = uuid.UUID(int=2)
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=10), run=other, name=None))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    assert [report.query for report in reports] == ["q", QUERY, "q"]
    assert reports[-1].rates == Rates(10.0, 10.0)


def test_only_the_query_asked_for_is_reported(reports: Reports) -> None:
    listener = LagListener(reports, query_name="q")
    other = uuid.UUID(int=2)
    for run, name in ((RUN, "q"), (other, "other")):
        listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10), run=run, name=name))
        listener.onQueryIdle(idle(run, 20))
    listener.onQueryIdle(idle(uuid.UUID(int=3), 20))
    assert [report.query for report in reports] == ["q", "q"]


def test_sources_of_others_in_the_same_query_are_passed_over(listener: LagListener, reports: Reports) -> None:
    told = progress(
        source("5", "7"),
        source({"t": {"0": 5}}, {"t": {"0": 9}}),  # Spark's own Kafka source
        source(None),
        source({"topics": {"0": 5}, "version": {"0": 1}}),  # the same, with unlucky names of topics
        source(offset(t_0=(0, 10)), ends(t_0=12)),
        source(offset(u_0=(0, 10)), ends(u_0=13)),
        source({}, {}),
        run=RUN,
    )
    listener.onQueryProgress(progressed(told))
    assert [(report.source, report.total) for report in reports] == [(4, 2), (5, 3)]


def test_partitions_that_another_member_has_now_are_left_out_and_come_back(
    listener: LagListener, reports: Reports
) -> None:
    both = offset(t_0=(0, 10), t_1=(0, 10))
    listener.onQueryProgress(batch(both, ends(t_0=10, t_1=10)))
    listener.onQueryProgress(batch(offset(t_0=(10, 20), t_1=(10, 10)), ends(t_0=20), second=1))
    listener.onQueryProgress(batch(offset(t_0=(20, 20), t_1=(500, 510)), ends(t_0=20, t_1=515), second=2))
    assert reports.lags() == [{"t-0": 0, "t-1": 0}, {"t-0": 0}, {"t-0": 0, "t-1": 5}]
    assert reports[-1].rates == Rates(5.0, 5.0)


def test_a_partition_that_came_back_is_told_of_when_its_position_is_known(
    listener: LagListener, reports: Reports
) -> None:
    there = offset(t_0=(0, 10), t_1=(0, 10))
    listener.onQueryProgress(batch(there, ends(t_0=10, t_1=10)))
    # Meanwhile t-1 is another member's; batches come for another source's sake.
    told = progress(source(there, ends(t_0=10), start=there), run=RUN, second=1)
    listener.onQueryProgress(progressed(told))
    told = progress(source(there, ends(t_0=10, t_1=900), start=there), run=RUN, second=2)
    listener.onQueryProgress(progressed(told))
    listener.onQueryIdle(idle(RUN, 3))
    assert reports.lags() == [{"t-0": 0, "t-1": 0}, {"t-0": 0}, {"t-0": 0}, {"t-0": 0}]
    told = progress(source(offset(t_0=(10, 11), t_1=(898, 898)), ends(t_0=11, t_1=900), start=there), run=RUN, second=4)
    listener.onQueryProgress(progressed(told))
    assert reports.lags()[-1] == {"t-0": 0, "t-1": 2}


def test_a_rewind_shows_as_lag_and_not_as_a_negative_rate(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(90, 100)), ends(t_0=100)))
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100), second=1))
    assert reports.lags() == [{"t-0": 0}, {"t-0": 90}]
    assert reports[-1].rates == Rates(0.0, 0.0)


def test_a_progress_without_the_ends_of_the_logs_gives_no_report(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), None))
    listener.onQueryIdle(idle(RUN, 10))
    assert reports == []


def test_a_sink_that_fails_is_logged_and_the_others_have_the_report(
    reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(report: LagReport) -> None:
        raise OSError("disk full")

    listener = LagListener(broken, reports)
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    assert len(reports) == 1
    assert "disk full" in caplog.text


def test_a_pyspark_that_does_not_tell_the_ends_is_warned_of_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "DataSourceStreamReader", object)
    LagListener()
    assert "without a look at the group no lag is reported" in caplog.text


class Looks(GroupOffsetsProbe):
    """Looks whose findings a test sets."""

    def __init__(self) -> None:
        self.group = "g"
        self.found: list[Sample | BrokerUnavailable] = []
        self.closed = 0

    def sample(self) -> Sample:
        found = self.found.pop(0)
        if isinstance(found, BrokerUnavailable):
            raise found
        return found

    def close(self) -> None:
        self.closed += 1


def group_at(second: float, position: int, end: int) -> Sample:
    tp = TopicPartition("t", 0)
    return Sample(second, {tp: position}, {tp: end})


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def looking(reports: Reports, looks: Looks, hand: Hand) -> LagListener:
    """A listener that looks at the group, on a clock that the test turns."""
    listener = LagListener(reports, look=looks)
    listener._looks = ThrottledProbe(looks, hand)
    return listener


def test_with_a_look_the_groups_lag_is_reported_whatever_the_progress_says(
    looking: LagListener, looks: Looks, reports: Reports, hand: Hand
) -> None:
    looks.found = [group_at(100.0, 5, 10), group_at(102.0, 25, 40), group_at(112.0, 40, 40)]
    looking.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    hand.sleep(2)
    looking.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=1)))
    hand.sleep(10)
    looking.onQueryIdle(idle(RUN, 12))
    assert [(each.group, each.at, each.total) for each in reports] == [
        ("g", 100.0, 5),
        ("g", 102.0, 15),
        ("g", 112.0, 0),
    ]
    assert reports[1].rates == Rates(10.0, 15.0)


def test_with_a_look_a_query_that_is_idle_from_its_start_is_told_of(
    looking: LagListener, looks: Looks, reports: Reports
) -> None:
    looks.found = [group_at(100.0, 7, 7)]
    looking.onQueryStarted(started(RUN))
    looking.onQueryIdle(idle(RUN, 10))
    assert [(each.query, each.total) for each in reports] == [("q", 0)]


def test_small_batches_do_not_make_more_than_one_look_a_second(
    looking: LagListener, looks: Looks, reports: Reports, hand: Hand
) -> None:
    looks.found = [group_at(float(at), 0, 0) for at in range(10)]
    for _ in range(40):
        looking.onQueryProgress(batch(offset(t_0=(0, 1)), None))
        hand.sleep(0.1)
    assert len(reports) == 4


def test_the_end_of_a_query_is_looked_at_whenever_it_comes_and_connections_end_with_the_last_one(
    looking: LagListener, looks: Looks, reports: Reports
) -> None:
    other = uuid.UUID(int=2)
    looks.found = [group_at(1.0, 0, 9), group_at(2.0, 9, 9), group_at(3.0, 9, 9)]
    looking.onQueryStarted(started(RUN))
    looking.onQueryStarted(started(other))
    looking.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    looking.onQueryTerminated(terminated(RUN))
    assert (looks.closed, [each.total for each in reports]) == (0, [9, 0])
    looking.onQueryTerminated(terminated(other))
    assert looks.closed == 1


def test_a_group_that_cannot_be_had_is_said_and_looked_at_more_and_more_seldom(
    looking: LagListener, looks: Looks, reports: Reports, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    away = BrokerUnavailable("nobody answers")
    looks.found = [*[away] * 7, group_at(1000.0, 0, 3), group_at(1001.0, 3, 3), away, group_at(1007.0, 3, 4)]
    times = []
    while looks.found:
        left = len(looks.found)
        looking.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=100)))
        if len(looks.found) < left:
            times.append(hand())
        hand.sleep(1)
    assert times == [0, 5, 15, 35, 75, 135, 195, 255, 256, 257, 262]
    assert [each.total for each in reports] == [3, 0, 1]
    assert caplog.text.count("nobody answers") == 8


def test_the_end_of_a_query_does_not_wait_for_a_group_that_cannot_be_had(
    looking: LagListener, looks: Looks, reports: Reports
) -> None:
    looks.found = [BrokerUnavailable("nobody answers")]
    looking.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    looking.onQueryTerminated(terminated(RUN))
    assert (reports, looks.found, looks.closed) == ([], [], 1)
