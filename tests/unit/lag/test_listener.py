"""Reports that the listener makes from a query's events, and of a group that it looks up with a client."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.counters import Counters
from spark_group_source.lag import listener as module
from spark_group_source.lag.backlog import Backlog
from spark_group_source.lag.client import GroupLagClient, ThrottledLagClient
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import Rates, Sample
from spark_group_source.offsets import BatchLimit
from tests.unit.hand_clock import Hand
from tests.unit.lag import events
from tests.unit.lag.events import OTHER_RUN, RUN, Reports, batch, ends, idle, offset, sample, source, started


class Listener(LagListener):
    """A listener, and the reports that it has made."""

    def __init__(self, **settings: Any) -> None:
        self.reports = Reports()
        super().__init__(self.reports, **settings)


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_lag_after_a_batch_is_the_rest_up_to_the_end_offsets(listener: Listener) -> None:
    listener.onQueryStarted(started(RUN))
    listener.onQueryProgress(batch(offset(t_0=(2, 5), t_1=(4, 4)), ends(t_0=9, t_1=4), second=61.5))
    (report,) = listener.reports
    assert (report.query, report.run_id, report.at, report.source, report.group) == ("q", str(RUN), 61.5, 0, "g")
    assert listener.reports.lags() == [{"t-0": 4, "t-1": 0}]
    assert (report.total, report.rates, report.catch_up) == (4, Rates(), None)


def test_the_group_of_an_earlier_releases_offset_is_unknown(listener: Listener) -> None:
    listener.onQueryProgress(batch({**offset(t_0=(2, 5)), "group": ""}, ends(t_0=9)))
    (report,) = listener.reports
    assert report.group is None


def test_progress_has_no_ages(listener: Listener) -> None:
    listener.onQueryProgress(batch(offset(t_0=(2, 5), t_1=(4, 4)), ends(t_0=9, t_1=4)))
    (report,) = listener.reports
    assert [each.age for each in report.partitions] == [None, None]
    assert (report.oldest, len(report.unknown_ages)) == (None, 2)


def test_an_idle_query_reports_its_position_and_its_rates_fall(listener: Listener) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    listener.onQueryIdle(idle(RUN, 11))
    listener.onQueryIdle(idle(RUN, 101))
    assert listener.reports.lags() == [{"t-0": 0}] * 4
    assert [report.at for report in listener.reports] == [0.0, 1.0, 11.0, 101.0]
    assert listener.reports[-2].rates.processed == pytest.approx(10 / 11)
    assert listener.reports[-1].rates == Rates(0.0, 0.0)


def test_a_restarted_query_has_new_rates_and_is_not_reported_before_its_first_batch(listener: Listener) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=100)))
    listener.onQueryTerminated(events.terminated(RUN))
    listener.onQueryStarted(started(OTHER_RUN))
    listener.onQueryIdle(idle(OTHER_RUN, 5))
    assert [report.run_id for report in listener.reports] == [str(RUN)]
    listener.onQueryProgress(batch(offset(t_0=(10, 50)), ends(t_0=100), second=60, run=OTHER_RUN))
    assert [report.run_id for report in listener.reports] == [str(RUN), str(OTHER_RUN)]
    assert listener.reports[-1].rates == Rates()


def test_each_query_has_its_own_rates_and_one_without_a_name_is_reported_by_its_id(listener: Listener) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    listener.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=10), run=OTHER_RUN, name=None))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    assert [report.query for report in listener.reports] == ["q", events.QUERY, "q"]
    assert listener.reports[-1].rates == Rates(10.0, 10.0)


def test_only_the_selected_query_is_reported() -> None:
    listener = Listener(query_name="q")
    for run, name in ((RUN, "q"), (OTHER_RUN, "other")):
        listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10), run=run, name=name))
        listener.onQueryIdle(idle(run, 20))
    listener.onQueryIdle(idle(uuid.UUID(int=3), 20))
    assert [report.query for report in listener.reports] == ["q", "q"]


def test_other_sources_in_the_same_query_are_ignored(listener: Listener) -> None:
    mixed = events.progress(
        source("5", "7"),
        source({"t": {"0": 5}}, {"t": {"0": 9}}),  # Spark's own Kafka source
        source(None),
        source({"topics": {"0": 5}, "version": {"0": 1}}),  # the same, with unfortunate topic names
        source(offset(t_0=(0, 10)), ends(t_0=12)),
        source(offset(u_0=(0, 10)), ends(u_0=13)),
        source({}, {}),
    )
    listener.onQueryProgress(events.progressed(mixed))
    assert [(report.source, report.total) for report in listener.reports] == [(4, 2), (5, 3)]


def test_reports_have_the_counters_of_the_membership_also_without_partitions(listener: Listener) -> None:
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    counted = {"#counters": {"rebalances": 2, "revoked": 3, "a_counter_of_a_later_release": 1}}
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20) | counted, second=1))
    listener.onQueryIdle(idle(RUN, 11))
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), {"#counters": {"lost": 1}}, second=12))
    counters = Counters(rebalances=2, revoked=3)
    assert [report.counters for report in listener.reports] == [None, counters, counters, Counters(lost=1)]
    assert listener.reports.lags() == [{"t-0": 0}] * 3 + [{}]


def test_reports_say_what_limited_the_last_batch(listener: Listener) -> None:
    expected = BatchLimit("targetBatchDuration", 10, "the last batch took 9.8 s for 8 offsets")
    limit = asdict(expected)
    listener.onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10) | {"#limit": limit}))
    listener.onQueryProgress(batch(offset(t_0=(10, 20)), ends(t_0=20), second=1))
    assert [report.limit for report in listener.reports] == [expected, None]
    text = str(listener.reports[0])
    assert text.endswith(", 10 offsets a batch by targetBatchDuration: the last batch took 9.8 s for 8 offsets")
    assert "offsets a batch" not in str(listener.reports[1])


def test_a_failing_sink_is_logged_and_others_get_the_report(caplog: pytest.LogCaptureFixture) -> None:
    reports, broken = Reports(), Mock(side_effect=OSError("disk full"))
    LagListener(broken, reports).onQueryProgress(batch(offset(t_0=(0, 10)), ends(t_0=10)))
    assert len(reports) == 1
    assert "disk full" in caplog.text


def test_a_pyspark_without_end_offsets_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "DataSourceStreamReader", object)
    LagListener()
    assert "cannot report the lag: PySpark before 4.2 shows no end offsets" in caplog.text


UNREACHABLE = BrokerUnavailable("nobody answers")
BATCH = batch(offset(t_0=(0, 1)), None)


@pytest.fixture
def client() -> Mock:
    """A client whose samples the test sets."""
    return Mock(GroupLagClient, group="g")


@pytest.fixture
def probing(client: Mock, hand: Hand) -> Listener:
    """A listener that looks up the group, on a clock that the test controls."""
    listener = Listener(client=client)
    listener._client = ThrottledLagClient(client, hand)
    return listener


def test_a_probe_reports_the_lag_of_the_group_instead(probing: Listener, client: Mock, hand: Hand) -> None:
    client.sample.side_effect = [sample(100.0, 5, 10), sample(102.0, 25, 40), sample(112.0, 40, 40)]
    probing.onQueryProgress(BATCH)
    hand.sleep(2)
    probing.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=1)))
    hand.sleep(10)
    probing.onQueryIdle(idle(RUN, 12))
    assert {each.group for each in probing.reports} == {"g"}
    assert [(each.at, each.total) for each in probing.reports] == [(100.0, 5), (102.0, 15), (112.0, 0)]
    assert probing.reports[1].rates == Rates(10.0, 15.0)


def test_a_probe_reports_the_counters_of_its_groups_member(probing: Listener, client: Mock, hand: Hand) -> None:
    client.sample.side_effect = [sample(100.0, 5, 10), sample(101.0, 5, 10)]
    other = offset(u_0=(0, 1)) | {"group": "other"}
    both = (source(other, {"#counters": {"lost": 9}}), source(offset(t_0=(0, 1)), {"#counters": {"lost": 1}}))
    probing.onQueryIdle(idle(RUN, 1))
    hand.sleep(1)
    probing.onQueryProgress(events.progressed(events.progress(*both)))
    assert [report.counters for report in probing.reports] == [None, Counters(lost=1)]


def test_small_batches_look_up_once_per_second(probing: Listener, client: Mock, hand: Hand) -> None:
    client.sample.side_effect = [sample(float(at), 0, 0) for at in range(10)]
    for _ in range(40):
        probing.onQueryProgress(BATCH)
        hand.sleep(0.1)
    assert len(probing.reports) == 4


@pytest.mark.parametrize(("took", "interval"), [(0.01, 1.0), (0.2, 4.0), (3.0, 10.0)])
def test_long_lookups_are_rarer(probing: Listener, client: Mock, hand: Hand, took: float, interval: float) -> None:
    times: list[float] = []

    def look_up() -> Sample:
        hand.sleep(took)
        times.append(hand())
        return sample(hand(), 0, 0)

    client.sample.side_effect = look_up
    while len(times) < 4:
        probing.onQueryProgress(BATCH)
        hand.sleep(0.1)
    pauses = [later - earlier - took for earlier, later in pairwise(times)]
    assert pauses == pytest.approx([interval] * 3, abs=0.15)


def test_a_query_that_ends_is_looked_up_at_once_and_the_last_closes_the_client(probing: Listener, client: Mock) -> None:
    client.sample.side_effect = [sample(1.0, 0, 9), sample(2.0, 9, 9), sample(3.0, 9, 9)]
    probing.onQueryStarted(started(RUN))
    probing.onQueryStarted(started(OTHER_RUN))
    probing.onQueryProgress(BATCH)
    probing.onQueryTerminated(events.terminated(RUN))
    assert [each.total for each in probing.reports] == [9, 0]
    client.close.assert_not_called()
    probing.onQueryTerminated(events.terminated(OTHER_RUN))
    client.close.assert_called_once()


def test_lookups_of_an_unreachable_group_log_warnings_and_back_off(
    probing: Listener, client: Mock, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    reached = sample(1000.0, 0, 3), sample(1001.0, 3, 3), UNREACHABLE, sample(1007.0, 3, 4)
    client.sample.side_effect = [*[UNREACHABLE] * 7, *reached]
    times: list[float] = []
    while len(times) < 11:
        probing.onQueryProgress(batch(offset(t_0=(0, 1)), ends(t_0=100)))
        if client.sample.call_count > len(times):
            times.append(hand())
        hand.sleep(1)
    assert times == [0, 5, 15, 35, 75, 135, 195, 255, 256, 257, 262]
    assert [each.total for each in probing.reports] == [3, 0, 1]
    assert caplog.text.count("nobody answers") == 8


def test_the_end_does_not_wait_for_an_unreachable_group(probing: Listener, client: Mock) -> None:
    client.sample.side_effect = [UNREACHABLE]
    probing.onQueryProgress(BATCH)
    probing.onQueryTerminated(events.terminated(RUN))
    assert (probing.reports, client.sample.call_count, client.close.call_count) == ([], 1, 1)


def recorded(version: str) -> list[dict[str, Any]]:
    """The progress of each batch of a real query, which shared its topic for a while. 4.1 shows no end offsets."""
    lines = (Path(__file__).parent / "recorded" / f"pyspark-{version}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def reported(version: str) -> Reports:
    listener = Listener()
    for each in recorded(version):
        listener.onQueryProgress(events.progressed(each))
    return listener.reports


def test_lag_falls_with_each_batch_to_0() -> None:
    reports = reported("4.3.0")
    assert [each.total for each in reports[:5]] == [141, 103, 65, 27, 0]
    assert {each.total for each in reports[5:]} == {0}
    assert {(each.query, each.source) for each in reports} == {("orders-to-lake", 0)}


def test_partitions_of_another_query_are_left_out_until_this_query_plans_them_again() -> None:
    seen = ["".join(str(each.tp.partition) for each in report.partitions) for report in reported("4.3.0")]
    assert list(dict.fromkeys(seen)) == ["012", "01"]
    assert seen[-3:] == ["012"] * 3
    # Its end offset came back a batch before its position, which would show a wrong lag of ten.
    assert (recorded("4.3.0")[15]["sources"][0]["latestOffset"]["orders"]["2"], seen[15]) == (100, "01")


def test_without_end_offsets_there_is_no_report() -> None:
    assert len(recorded("4.1.0")) > 10
    assert reported("4.1.0") == []


@pytest.mark.parametrize(("version", "steps"), [("4.3.0", [39, 77, 115, 153, 180]), ("4.1.0", None)])
def test_a_backlog_is_done_when_what_was_there_is_read(version: str, steps: list[int] | None) -> None:
    backlog, done = Backlog(), []
    for each in recorded(version):
        backlog.update(each)
        done.append((backlog.done, backlog.total))
    if steps:
        assert done[:5] == [(step, 180) for step in steps]
    assert done[-1][0] == done[-1][1]
