"""jobs/group_report.py: samples, messages and charts, without brokers or with a fake Kafka."""

from __future__ import annotations

import html.parser
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import group_report
import pytest
from matplotlib import pyplot
from report import charts
from report.page import page
from report.watch import History, Snapshot, watch

from spark_group_source.errors import BrokerUnavailable, GroupSourceError
from spark_group_source.group.description import GroupDescription, MemberDescription
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.model import Sample
from spark_group_source.offsets import TopicPartition
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand

GROUP = "orders-to-lake"


def snapshot(
    at: float, shares: dict[str, set[int]], lag: int = 0, state: str = "Stable", topic: str = "orders"
) -> Snapshot:
    """A look at which each member owns the partitions given, and each partition has that lag."""
    members = tuple(
        MemberDescription(
            name, f"client-{name}", "10.0.0.1", None, frozenset(TopicPartition(topic, n) for n in numbers)
        )
        for name, numbers in shares.items()
    )
    owned = sorted(tp for each in members for tp in each.partitions)
    positions = {tp: 1000 + round(at) for tp in owned}
    sample = Sample(1_700_000_000.0 + at, positions, {tp: offset + lag for tp, offset in positions.items()})
    return Snapshot(GroupDescription(state, "cooperative-sticky", members), sample)


class Looks(GroupLagClient):
    """Looks whose findings a test sets."""

    def __init__(self, *found: Snapshot | GroupSourceError) -> None:
        self.group = GROUP
        self._found = list(found)

    def describe(self) -> GroupDescription:
        if isinstance(found := self._found[0], GroupSourceError):
            del self._found[0]
            raise found
        return found.group

    def sample(self) -> Sample:
        found = self._found.pop(0)
        assert isinstance(found, Snapshot)
        return found.sample


def test_a_report_samples_now_and_at_each_interval_until_its_time_ends(hand: Hand) -> None:
    looks = Looks(*(snapshot(at, {"a": {0}}) for at in range(9)))
    history = watch(looks, 3.0, 1.0, lambda text: None, hand)
    assert [each.sample.at - 1_700_000_000 for each in history.snapshots] == [0, 1, 2, 3]
    assert hand.now == 3.0


def test_failed_samples_are_reported_and_the_report_continues(hand: Hand) -> None:
    said: list[str] = []
    looks = Looks(snapshot(0, {"a": {0}}), BrokerUnavailable("nobody answers"), snapshot(2, {"a": {0}}))
    history = watch(looks, 2.0, 1.0, said.append, hand)
    assert len(history.snapshots) == 2
    assert said == history.failures
    assert len(said) == 1
    assert said[0].startswith("[BROKER_UNAVAILABLE] nobody answers")
    assert "1 sample(s) failed, the last one with: [BROKER_UNAVAILABLE] nobody answers" in page(GROUP, history)


def test_a_group_without_members_and_commits_does_not_exist(hand: Hand) -> None:
    nothing = Snapshot(GroupDescription("Dead", "", ()), Sample(0.0, {}, {}))
    with pytest.raises(GroupSourceError, match=r"does not exist.*--list"):
        watch(Looks(nothing), 1.0, 1.0, lambda text: None, hand)


def test_rebalances_are_seen_by_the_groups_state_and_the_changed_assignment() -> None:
    history = History(
        [
            snapshot(0, {"a": {0, 1}}),
            snapshot(1, {"a": {0, 1}, "b": set()}, state="PreparingRebalance"),
            snapshot(2, {}, state="CompletingRebalance"),
            snapshot(3, {"a": {0}, "b": {1}}),
            snapshot(4, {"a": {0}, "b": {1}}),
            snapshot(5, {"a": {0, 1}}),
            snapshot(6, {"a": {0, 1}}, state="PreparingRebalance"),
            snapshot(7, {"a": {0, 1}}),
            snapshot(8, {"a": {0, 1}}, state="PreparingRebalance"),
        ]
    )
    assert [(each.at - 1_700_000_000, each.what) for each in history.rebalances()] == [
        (1, "1 member(s) joined, 1 partition(s) changed owner"),
        (5, "1 left, 1 partition(s) changed owner"),
        (6, "0 partition(s) changed owner"),
        (8, "not complete at the end of the report"),
    ]


def many(partitions: int, topic: str = "orders", looks: int = 5) -> History:
    """A watch of a group of two members, the second of which has an uneven lag."""
    shares = {"a": set(range(0, partitions, 2)), "b": set(range(1, partitions, 2))}
    return History([snapshot(at, shares, lag=7_654_321 - 1_000 * at, topic=topic) for at in range(looks)])


class Page(html.parser.HTMLParser):
    """The text of a page, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_needs_no_other_file_and_has_members_partitions_and_lag() -> None:
    found = Page(page(GROUP, many(3)))
    assert "script" not in found.tags
    assert len(found.loads) == 3
    assert all(each.startswith("data:image/png;base64,") for each in found.loads)
    assert {"client-a", "client-b", "7,650,321", "22,950,963", "client-b at 10.0.0.1"} <= set(found.text)
    assert "Stable, protocol classic, 2 member(s) by cooperative-sticky; 5 sample(s) in 4 s" in " ".join(found.text)


def test_the_page_names_the_protocol_and_epoch_of_members_and_what_they_subscribe_to() -> None:
    both = GroupDescription(
        "Stable",
        "uniform",
        (
            MemberDescription("a", "client-a", "h", None, frozenset(), frozenset({"u", "t"}), "", "consumer", 7),
            MemberDescription("b", "client-b", "h", "i", frozenset(), frozenset(), "t.*", "classic", 8),
        ),
        "consumer",
    )
    text = Page(page(GROUP, History([Snapshot(both, Sample(0.0, {}, {}))]))).text
    assert {"consumer", "classic", "7", "8", "t, u", "pattern t.*", "i"} <= set(text)
    assert any("Stable, protocol consumer, 2 member(s) by uniform;" in each for each in text)


def test_a_partition_with_unknown_lag_is_named_and_the_total_is_a_minimum() -> None:
    looks = many(3).snapshots
    silent = TopicPartition("orders", 1)
    ends = {tp: end for tp, end in looks[-1].sample.ends.items() if tp != silent}
    looks[-1] = replace(looks[-1], sample=replace(looks[-1].sample, ends=ends))
    text = Page(page(GROUP, History(looks))).text
    assert f"≥ {2 * 7_650_321:,}" in text
    assert "The lag of 1 partition(s) is unknown: no leader reported the end offset of orders-1." in text
    assert math.isnan(looks[-1].lag())


def test_client_and_group_names_are_escaped() -> None:
    bad = "<script>alert('x')</script>"
    shares = {bad: {0}}
    text = page(bad, History([snapshot(0, shares, 1), snapshot(1, shares, 1)]))
    assert "script" not in Page(text).tags
    assert f"client-{bad}" in Page(text).text


def test_one_sample_or_a_group_without_lag_or_members_also_has_a_page() -> None:
    alone = Snapshot(
        GroupDescription("Empty", "", ()), Sample(0.0, {TopicPartition("t", 0): 5}, {TopicPartition("t", 0): 9})
    )
    text = " ".join(Page(page(GROUP, History([alone]))).text)
    assert "1 partition(s) with lag have no owner now" in text
    assert "None now." in text
    assert Page(page(GROUP, History([snapshot(0, {"a": set()})]))).loads == []


@pytest.mark.parametrize(
    "history",
    [many(1), many(2), many(100), many(30, "a-topic-with-a-name-of-quite-some-length-indeed"), many(3, looks=1)],
    ids=["1", "2", "100", "long names", "one look"],
)
def test_labels_on_the_axes_do_not_overlap(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(charts, "_png", drawn.append)
    charts.by_partition(history)
    if len(history.snapshots) > 1:
        charts.over_time(history)
        charts.heat(history)
    for figure in drawn:
        pyplot.close(figure)
        figure.draw_without_rendering()
        for axes in figure.axes:
            assert axes.get_xlabel() or axes.get_ylabel()
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                shown = [each for each in axis.get_major_ticks() if low <= each.get_loc() <= high]
                labels = [label for each in shown for label in (each.label1, each.label2)]
                boxes = [label.get_window_extent() for label in labels if label.get_visible() and label.get_text()]
                assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
                assert all(figure.bbox.x0 <= each.x0 and each.x1 <= figure.bbox.x1 for each in boxes)


def test_offsets_on_an_axis_are_whole_numbers_also_without_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(charts, "_png", drawn.append)
    charts.by_partition(History([snapshot(0, {"a": {0, 1}})]))
    pyplot.close(drawn[0])
    assert all(tick == int(tick) for tick in drawn[0].axes[0].get_xticks())


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A group that has stopped in the middle of a topic."""
    with FakeKafka() as running:
        running.create_topic("t", partitions=2)
        running.produce("t", ["x"] * 10)
        running.commit(GROUP, {("t", 0): 4, ("t", 1): 0})
        yield running


def run(fake: FakeKafka, output: Path, *more: str) -> int:
    where = ["--bootstrap-servers", fake.bootstrap_servers, "--output", str(output)]
    return group_report.main([*where, "--group", GROUP, "--seconds", "0.1", "--interval", "0.1", *more])


def test_the_job_writes_the_page_and_prints_its_path(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake, tmp_path / "report.html") == 0
    assert re.search(r"report\.html: \d+ sample\(s\), lag 6", capsys.readouterr().err)
    assert "6" in Page((tmp_path / "report.html").read_text()).text


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--group", "nobody"], 1, "does not exist"),
        (["--option", "kafka.sasl.mechanism=NO"], 2, "kafka.sasl.mechanism"),
        (["--bootstrap-servers", "nonsense"], 2, "host:port"),
    ],
)
def test_an_error_names_the_next_action_and_writes_no_page(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, said: str
) -> None:
    assert run(fake, tmp_path / "report.html", *more) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_unreachable_brokers_are_an_error(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_report, "GroupLagClient", partial(GroupLagClient, timeout=0.2))
    for each in fake.brokers.values():
        each.stop()
    assert run(fake, tmp_path / "report.html") == 1
    assert "No Kafka broker answered" in capsys.readouterr().err
