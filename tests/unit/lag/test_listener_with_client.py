"""Reports of a listener that looks up the group with a client."""

from __future__ import annotations

import uuid

import pytest

from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.settings import Counters
from spark_group_source.lag.client import GroupLagClient, ThrottledLagClient
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import Rates, Sample
from spark_group_source.offsets import TopicPartition
from tests.unit.hand_clock import Hand
from tests.unit.lag.events import (
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


def test_with_a_probe_a_query_that_is_idle_since_its_start_is_reported(
    probing: LagListener, client: FakeClient, reports: Reports
) -> None:
    client.results = [group_at(100.0, 7, 7)]
    probing.onQueryStarted(started(RUN))
    probing.onQueryIdle(idle(RUN, 10))
    assert [(each.query, each.total) for each in reports] == [("q", 0)]


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


def test_small_batches_cause_at_most_one_lookup_per_second(
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


def test_the_end_of_a_query_does_not_wait_for_an_unreachable_group(
    probing: LagListener, client: FakeClient, reports: Reports
) -> None:
    client.results = [BrokerUnavailable("nobody answers")]
    probing.onQueryProgress(batch(offset(t_0=(0, 1)), None))
    probing.onQueryTerminated(terminated(RUN))
    assert (reports, client.results, client.closed) == ([], [], 1)
