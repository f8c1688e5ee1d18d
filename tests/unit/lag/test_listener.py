"""Reports that the listener makes from a query's events, and of a group that it looks up with a client."""

from __future__ import annotations

import uuid

import pytest

from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.settings import Counters
from spark_group_source.lag import listener as module
from spark_group_source.lag.client import GroupLagClient, ThrottledLagClient
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import LagReport, Rates, Sample
from spark_group_source.offsets import TopicPartition
from tests.unit.hand_clock import Hand
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
def reports() -> Reports:
    """A sink that keeps the reports it receives."""
    return Reports()


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


def test_an_idle_query_reports_its_position_and_its_rates_fall(listener: LagListener, reports: Reports) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    listener.onQueryIdle(idle(RUN, 11))
    listener.onQueryIdle(idle(RUN, 101))
    assert reports.lags() == [{"t-0": 0}] * 4
    assert [report.at for report in reports] == [0.0, 1.0, 11.0, 101.0]
    assert reports[-2].rates.processed == pytest.approx(10 / 11)
    assert reports[-1].rates == Rates(0.0, 0.0)


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


def test_a_failing_sink_is_logged_and_others_get_the_report(reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    def broken(report: LagReport) -> None:
        raise OSError("disk full")

    listener = LagListener(broken, reports)
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    assert len(reports) == 1
    assert "disk full" in caplog.text


def test_a_pyspark_without_end_offsets_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "DataSourceStreamReader", object)
    LagListener()
    assert "no lag is reported: PySpark shows end offsets from 4.2 on" in caplog.text


class FakeClient(GroupLagClient):
    """A client whose results the test sets."""

    def __init__(self) -> None:
        self.group = "g"
        self.results: list[Sample | BrokerUnavailable] = []
        self.closed = 0

    def sample(self) -> Sample:
        result = self.results.pop(0)
        if isinstance(result, BrokerUnavailable):
            raise result
        return result

    def close(self) -> None:
        self.closed += 1


def group_at(second: float, position: int, end: int) -> Sample:
    tp = TopicPartition("t", 0)
    return Sample(second, {tp: position}, {tp: end})


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def probing(reports: Reports, client: FakeClient, hand: Hand) -> LagListener:
    """A listener that looks up the group, on a clock that the test controls."""
    listener = LagListener(reports, client=client)
    listener._client = ThrottledLagClient(client, hand)
    return listener


def test_with_a_probe_the_lag_of_the_group_is_reported_instead_of_the_progress(
    probing: LagListener, client: FakeClient, reports: Reports, hand: Hand
) -> None:
    client.results = [group_at(100.0, 5, 10), group_at(102.0, 25, 40), group_at(112.0, 40, 40)]
    probing.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    hand.sleep(2)
    probing.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=1)))
    hand.sleep(10)
    probing.onQueryIdle(idle(RUN, 12))
    assert [(each.group, each.at, each.total) for each in reports] == [
        ("g", 100.0, 5),
        ("g", 102.0, 15),
        ("g", 112.0, 0),
    ]
    assert reports[1].rates == Rates(10.0, 15.0)


def test_with_a_probe_reports_have_the_counters_of_the_member_in_that_group(
    probing: LagListener, client: FakeClient, reports: Reports, hand: Hand
) -> None:
    client.results = [group_at(100.0, 5, 10), group_at(101.0, 5, 10)]
    other = offset(u_0=(0, 1)) | {"group": "other"}
    both = (source(other, {"#counters": {"lost": 9}}), source(offset(t_0=(0, 1)), {"#counters": {"lost": 1}}))
    probing.onQueryIdle(idle(RUN, 1))
    hand.sleep(1)
    probing.onQueryProgress(progressed(progress(*both, run=RUN)))
    assert [report.counters for report in reports] == [None, Counters(lost=1)]


def test_small_batches_look_up_once_per_second(
    probing: LagListener, client: FakeClient, reports: Reports, hand: Hand
) -> None:
    client.results = [group_at(float(at), 0, 0) for at in range(10)]
    for _ in range(40):
        probing.onQueryProgress(batch(offset(t_0=(0, 1)), None))
        hand.sleep(0.1)
    assert len(reports) == 4


def test_the_end_of_a_query_causes_a_lookup_at_once_and_the_last_end_closes_the_connections(
    probing: LagListener, client: FakeClient, reports: Reports
) -> None:
    other = uuid.UUID(int=2)
    client.results = [group_at(1.0, 0, 9), group_at(2.0, 9, 9), group_at(3.0, 9, 9)]
    probing.onQueryStarted(started(RUN))
    probing.onQueryStarted(started(other))
    probing.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    probing.onQueryTerminated(terminated(RUN))
    assert (client.closed, [each.total for each in reports]) == (0, [9, 0])
    probing.onQueryTerminated(terminated(other))
    assert client.closed == 1


def test_lookups_of_an_unreachable_group_log_warnings_and_back_off(
    probing: LagListener, client: FakeClient, reports: Reports, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    unreachable = BrokerUnavailable("nobody answers")
    client.results = [
        *[unreachable] * 7,
        group_at(1000.0, 0, 3),
        group_at(1001.0, 3, 3),
        unreachable,
        group_at(1007.0, 3, 4),
    ]
    times = []
    while client.results:
        left = len(client.results)
        probing.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=100)))
        if len(client.results) < left:
            times.append(hand())
        hand.sleep(1)
    assert times == [0, 5, 15, 35, 75, 135, 195, 255, 256, 257, 262]
    assert [each.total for each in reports] == [3, 0, 1]
    assert caplog.text.count("nobody answers") == 8


def test_the_end_does_not_wait_for_an_unreachable_group(
    probing: LagListener, client: FakeClient, reports: Reports
) -> None:
    client.results = [BrokerUnavailable("nobody answers")]
    probing.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    probing.onQueryTerminated(terminated(RUN))
    assert (reports, client.results, client.closed) == ([], [], 1)


def test_a_query_that_is_idle_since_its_start_is_not_reported(listener: LagListener, reports: Reports) -> None:
    listener.onQueryStarted(started(RUN))
    listener.onQueryIdle(idle(RUN, 10))
    listener.onQueryTerminated(terminated(RUN))
    assert reports == []
