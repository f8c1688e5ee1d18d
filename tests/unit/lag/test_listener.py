"""Reports that the listener makes from a query's events."""

from __future__ import annotations

import uuid

import pytest

from spark_group_source.group.settings import Counters
from spark_group_source.lag import listener as module
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import LagReport, Rates
from tests.unit.lag.events import (
    QUERY,
    RUN,
    Reports,
    batch,
    ends,
    idle,
    offset,
    progress,
    progressed,
    source,
    started,
    terminated,
)


@pytest.fixture
def listener(reports: Reports) -> LagListener:
    return LagListener(reports)


def test_lag_after_a_batch_is_the_rest_up_to_the_end_offsets(listener: LagListener, reports: Reports) -> None:
    listener.onQueryStarted(started(RUN))
    listener.onQueryProgress(batch(offset(t_0=(2, 5), t_1=(4, 4)), ends(t_0=9, t_1=4), second=61.5))
    (report,) = reports
    assert (report.query, report.run_id, report.at, report.source, report.group) == ("q", str(RUN), 61.5, 0, None)
    assert reports.lags() == [{"t-0": 4, "t-1": 0}]
    assert (report.total, report.rates, report.catch_up) == (4, Rates(), None)


def test_the_second_report_has_rates(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100)))
    listener.onQueryProgress(batch(offset(t_0=(10, 50)), ends(t_0=120), second=2))
    assert reports[-1].rates == Rates(20.0, 10.0)
    assert reports[-1].catch_up == 7.0


def test_an_idle_query_reports_its_position_and_its_rates_fall(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    listener.onQueryIdle(idle(RUN, 11))
    listener.onQueryIdle(idle(RUN, 101))
    assert reports.lags() == [{"t-0": 0}] * 4
    assert [report.at for report in reports] == [0.0, 1.0, 11.0, 101.0]
    assert reports[-2].rates.processed == pytest.approx(10 / 11)
    assert reports[-1].rates == Rates(0.0, 0.0)


def test_a_query_that_is_idle_since_its_start_is_not_reported(listener: LagListener, reports: Reports) -> None:
    listener.onQueryStarted(started(RUN))
    listener.onQueryIdle(idle(RUN, 10))
    listener.onQueryTerminated(terminated(RUN))
    assert reports == []


def test_a_restarted_query_has_new_rates(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100)))
    listener.onQueryTerminated(terminated(RUN, "it failed"))
    again = uuid.UUID(int=2)
    listener.onQueryStarted(started(again))
    listener.onQueryIdle(idle(again, 5))
    listener.onQueryProgress(batch(offset(t_0=(10, 50)), ends(t_0=100), second=60, run=again))
    assert [report.run_id for report in reports] == [str(RUN), str(again)]
    assert reports[-1].rates == Rates()


def test_each_query_has_its_own_rates_and_a_query_without_a_name_is_reported_by_its_id(
    listener: LagListener, reports: Reports
) -> None:
    other = uuid.UUID(int=2)
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=10), run=other, name=None))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    assert [report.query for report in reports] == ["q", QUERY, "q"]
    assert reports[-1].rates == Rates(10.0, 10.0)


def test_only_the_selected_query_is_reported(reports: Reports) -> None:
    listener = LagListener(reports, query_name="q")
    other = uuid.UUID(int=2)
    for run, name in ((RUN, "q"), (other, "other")):
        listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10), run=run, name=name))
        listener.onQueryIdle(idle(run, 20))
    listener.onQueryIdle(idle(uuid.UUID(int=3), 20))
    assert [report.query for report in reports] == ["q", "q"]


def test_other_sources_in_the_same_query_are_ignored(listener: LagListener, reports: Reports) -> None:
    mixed = progress(
        source("5", "7"),
        source({"t": {"0": 5}}, {"t": {"0": 9}}),  # Spark's own Kafka source
        source(None),
        source({"topics": {"0": 5}, "version": {"0": 1}}),  # the same, with unfortunate topic names
        source(offset(t_0=(0, 10)), ends(t_0=12)),
        source(offset(u_0=(0, 10)), ends(u_0=13)),
        source({}, {}),
        run=RUN,
    )
    listener.onQueryProgress(progressed(mixed))
    assert [(report.source, report.total) for report in reports] == [(4, 2), (5, 3)]


def test_partitions_of_another_member_are_left_out_until_they_come_back(
    listener: LagListener, reports: Reports
) -> None:
    both = offset(t_0=(0, 10), t_1=(0, 10))
    listener.onQueryProgress(batch(both, ends(t_0=10, t_1=10)))
    listener.onQueryProgress(batch(offset(t_0=(10, 20), t_1=(10, 10)), ends(t_0=20), second=1))
    listener.onQueryProgress(batch(offset(t_0=(20, 20), t_1=(500, 510)), ends(t_0=20, t_1=515), second=2))
    assert reports.lags() == [{"t-0": 0, "t-1": 0}, {"t-0": 0}, {"t-0": 0, "t-1": 5}]
    assert reports[-1].rates == Rates(5.0, 5.0)


def test_a_partition_that_came_back_is_reported_when_its_position_is_known(
    listener: LagListener, reports: Reports
) -> None:
    standing = offset(t_0=(0, 10), t_1=(0, 10))
    listener.onQueryProgress(batch(standing, ends(t_0=10, t_1=10)))
    # Another member owns t-1 now. Another source has records for these batches.
    mixed = progress(source(standing, ends(t_0=10), start=standing), run=RUN, second=1)
    listener.onQueryProgress(progressed(mixed))
    mixed = progress(source(standing, ends(t_0=10, t_1=900), start=standing), run=RUN, second=2)
    listener.onQueryProgress(progressed(mixed))
    listener.onQueryIdle(idle(RUN, 3))
    assert reports.lags() == [{"t-0": 0, "t-1": 0}, {"t-0": 0}, {"t-0": 0}, {"t-0": 0}]
    mixed = progress(
        source(offset(t_0=(10, 11), t_1=(898, 898)), ends(t_0=11, t_1=900), start=standing), run=RUN, second=4
    )
    listener.onQueryProgress(progressed(mixed))
    assert reports.lags()[-1] == {"t-0": 0, "t-1": 2}


def test_a_rewind_shows_as_lag_without_a_negative_rate(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(90, 100)), ends(t_0=100)))
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100), second=1))
    assert reports.lags() == [{"t-0": 0}, {"t-0": 90}]
    assert reports[-1].rates == Rates(0.0, 0.0)


def test_a_progress_without_end_offsets_gives_no_report(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), None))
    listener.onQueryIdle(idle(RUN, 10))
    assert reports == []


def test_reports_have_the_counters_of_the_membership(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    counted = {"#counters": {"rebalances": 2, "revoked": 3, "a_counter_of_a_later_release": 1}}
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20) | counted, second=1))
    listener.onQueryIdle(idle(RUN, 11))
    assert [report.counters for report in reports] == [None, *[Counters(rebalances=2, revoked=3)] * 2]
    assert reports.lags() == [{"t-0": 0}] * 3


def test_a_query_that_owns_no_partition_still_reports_its_counters(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), {"#counters": {"lost": 1}}))
    assert [(report.partitions, report.counters) for report in reports] == [((), Counters(lost=1))]


def test_a_failing_sink_is_logged_and_the_other_sinks_get_the_report(
    reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(report: LagReport) -> None:
        raise OSError("disk full")

    listener = LagListener(broken, reports)
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    assert len(reports) == 1
    assert "disk full" in caplog.text


def test_a_pyspark_without_end_offsets_causes_a_warning_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "DataSourceStreamReader", object)
    LagListener()
    assert "no lag is reported: PySpark shows end offsets from 4.2 on" in caplog.text
