"""``python -m spark_group_source``: ``lag`` and ``report``. ``test_error_docs.py`` has ``explain``."""

from __future__ import annotations

import html.parser
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spark_group_source.__main__ import main
from spark_group_source.errors import BrokerUnavailable, GroupSourceError
from spark_group_source.group.description import GroupDescription, MemberDescription
from spark_group_source.lag import client as lag_client
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.group_report import Snapshot, page, rebalances, text, watch
from spark_group_source.lag.model import Sample
from spark_group_source.offsets import TopicPartition
from tests.fake import FakeKafka
from tests.unit.hand_clock import Hand

GROUP = "orders-to-lake"
WRITTEN_AT = 1_700_000_000


def seen(at: float, shares: dict[str, set[int]], lag: int = 0, state: str = "Stable") -> Snapshot:
    """A group in which each member owns the partitions given, and each partition has that lag."""
    members = tuple(
        MemberDescription(name, f"client-{name}", "/10.0.0.1", None, frozenset(TopicPartition("t", n) for n in numbers))
        for name, numbers in shares.items()
    )
    positions = {tp: 1000 + round(at) for each in members for tp in each.partitions}
    sample = Sample(1_700_000_000.0 + at, positions, {tp: offset + lag for tp, offset in positions.items()})
    return Snapshot(GroupDescription(state, "cooperative-sticky", members), sample)


class Lookups(GroupLagClient):
    """Lookups whose results a test sets."""

    def __init__(self, *results: Snapshot | GroupSourceError) -> None:
        self.group = GROUP
        self._results = list(results)

    def describe(self) -> GroupDescription:
        if isinstance(found := self._results[0], GroupSourceError):
            del self._results[0]
            raise found
        return found.group

    def sample(self) -> Sample:
        found = self._results.pop(0)
        assert isinstance(found, Snapshot)
        return found.sample


def test_a_group_is_looked_up_now_and_at_each_interval_until_the_time_ends(hand: Hand) -> None:
    found = watch(Lookups(*(seen(at, {"a": {0}}) for at in range(9))), 3.0, 1.0, print, hand)
    assert [each.sample.at - 1_700_000_000 for each in found] == [0, 1, 2, 3]
    assert hand.now == 3.0


def test_failed_lookups_are_printed_and_the_report_continues(hand: Hand) -> None:
    said: list[str] = []
    lookups = Lookups(seen(0, {"a": {0}}), BrokerUnavailable("nobody answers"), seen(2, {"a": {0}}))
    assert len(watch(lookups, 2.0, 1.0, said.append, hand)) == 2
    assert [each.partition(" For")[0] for each in said] == ["[BROKER_UNAVAILABLE] nobody answers"]


def test_rebalances_are_changes_of_members_or_owners_between_stable_groups() -> None:
    snapshots = [
        seen(0, {"a": {0, 1}}),
        seen(1, {"a": {0, 1}, "b": set()}, state="PreparingRebalance"),
        seen(2, {}, state="CompletingRebalance"),
        seen(3, {"a": {0}, "b": {1}}),
        seen(4, {"a": {0}, "b": {1}}),
        seen(5, {"a": {0, 1}}),
        seen(6, {"a": {0, 1}}, state="PreparingRebalance"),
        seen(7, {"a": {0, 1}}),
    ]
    assert [(str(at)[-2:], *more) for at, *more in rebalances(snapshots)[1:]] == [("23", 1, 0, 1), ("25", 0, 1, 1)]


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


def test_the_page_loads_nothing_and_has_lag_rates_members_and_partitions() -> None:
    shares = {"a": {0, 2}, "b": {1}}
    found = Page(page(GROUP, [seen(at, shares, 7_654_321 - 1_000 * at) for at in range(5)]))
    assert not found.loads
    assert "script" not in found.tags
    assert found.tags.count("polyline") == 1
    assert "orders-to-lake: lag 22,950,963 in 3 partition(s)" in " ".join(found.text)
    assert "3/s processed, 0/s arrived" not in found.text
    assert {"client-a", "client-b", "7650321", "/10.0.0.1"} <= set(found.text)
    assert "Stable, protocol classic, assignor cooperative-sticky, 2 member(s)" in found.text


def test_the_page_names_the_protocol_of_members_and_what_they_subscribe_to() -> None:
    members = (
        MemberDescription("a", "client-a", "h", None, frozenset(), frozenset({"u", "t"}), "", "consumer", 7),
        MemberDescription("b", "client-b", "h", "i", frozenset(), frozenset(), "t.*", "classic", 8),
    )
    both = GroupDescription("Stable", "uniform", members, "consumer")
    cells = {each.strip() for each in Page(page(GROUP, [Snapshot(both, Sample(0.0, {}, {}))])).text}
    assert {"consumer", "classic", "t, u", "t.*", "i"} <= cells
    assert "Stable, protocol consumer, assignor uniform, 2 member(s)" in cells


def test_client_and_group_names_are_escaped() -> None:
    bad = "<script>alert('x')</script>"
    found = Page(page(bad, [seen(0, {bad: {0}}, 1), seen(1, {bad: {0}}, 1)]))
    assert "script" not in found.tags
    assert f"client-{bad}" in found.text


def test_a_partition_without_an_owner_has_its_lag_in_the_table() -> None:
    tp = TopicPartition("t", 0)
    alone = Snapshot(GroupDescription("Empty", "", ()), Sample(0.0, {tp: 5}, {tp: 9}))
    kafkas = "GROUP           TOPIC  PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST  CLIENT-ID"
    assert text(alone.partitions(GROUP)).splitlines() == [
        f"{kafkas}  AGE-SECONDS",
        "orders-to-lake  t      0          5               9               4    -            -     -          -",
    ]
    aged = replace(alone, sample=replace(alone.sample, ages={tp: 311.7}))
    assert text(aged.partitions(GROUP)).splitlines()[1].split()[-1] == "312"
    assert "oldest record 5 min old" in page(GROUP, [aged])
    assert "polyline" in page(GROUP, [alone])


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A group that has stopped in the middle of a topic."""
    with FakeKafka() as running:
        running.create_topic("t", partitions=2)
        running.produce("t", ["x"] * 10, timestamp=WRITTEN_AT * 1000)
        running.commit(GROUP, {("t", 0): 4, ("t", 1): 0})
        yield running


def run(command: str, fake: FakeKafka, *more: str) -> int:
    return main([command, "--bootstrap-servers", fake.bootstrap_servers, "--group", GROUP, *more])


def test_lag_prints_a_row_for_each_partition(fake: FakeKafka, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lag", fake) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line[:6] for line in lines]
    assert rows[0] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert [row[:3] for row in rows[1:]] == [[GROUP, "t", "0"], [GROUP, "t", "1"]]
    assert sum(int(row[5]) for row in rows[1:]) == 6
    since = time.time() - WRITTEN_AT
    first, second = (int(line[-1]) for line in lines[1:])
    assert since - 10 < first <= since + 1
    assert second == 0, "nothing is left to read"


def test_options_come_from_a_file_and_the_command_line_takes_precedence(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    config = ["--command-config", str(file)]
    file.write_text(f"bootstrap.servers={fake.bootstrap_servers}\ngroup.id={GROUP}\nsubscribe=t\n")
    for arguments in (config, [*config, "--option", "kafka.client.id=me"]):
        assert main(["lag", *arguments]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 3
    file.write_text(f"bootstrap.servers=127.0.0.1:1\ngroup.id=nobody\nsubscribe=u\nclient.rack={'x' * 40_000}\n")
    given = ["--bootstrap-servers", fake.bootstrap_servers, "--group", GROUP]
    assert main(["lag", *config, *given, "--option", "subscribe=t", "--option", "kafka.client.rack=a"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("group.id=g", "Neither --bootstrap-servers nor --command-config names 'kafka.bootstrap.servers'"),
        ("bootstrap.servers=b1:1", "or a properties file with the line group.id=..."),
        ("bootstrap.servers=b1:1\ngroup.id=g\nssl.truststore.type=JKS\nsecurity.protocol=SSL", "keytool -list"),
        ("bootstrap.servers=b1:1\ngroup.id=g\nssl.truststore.password=s3cret", "Remove it. The error for a Java store"),
        ("bootstrap.servers=b1:1\ngroup.id=g\nsasl.password=s3cret", "'kafka.sasl.password' has no effect"),
    ],
)
def test_an_error_in_a_file_is_that_of_the_option_and_shows_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(line)
    for command in ("lag", "report"):
        assert main([command, "--command-config", str(file)]) == 2
        shown = capsys.readouterr().err
        assert said in shown
        assert "s3cret" not in shown


def test_topics_of_the_command_line_replace_those_of_the_file(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("subscribe=u\n")
    config = ("--command-config", str(file))
    for option in ("subscribePattern=t.*", "SUBSCRIBE=t", 'assign={"t":[0,1]}'):
        assert run("lag", fake, *config, "--option", option) == 0
        assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_argument_that_is_no_option_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["lag", "--option", "kafka.sasl.password s3cret"])
    shown = capsys.readouterr().err
    assert "NAME=VALUE is needed" in shown
    assert "s3cret" not in shown
    with pytest.raises(SystemExit, match="2"):
        main(["report", "--seconds", "1m"])
    assert "'1m' is not a number of seconds greater than 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "says"), [("nowhere/report.html", "there is no directory"), ("", "it is a directory")]
)
def test_a_page_that_cannot_be_written_is_an_error_before_the_samples(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    assert run("report", fake, "--output", str(tmp_path / name), "--seconds", "1") == 2
    assert f"cannot be written: {says}" in capsys.readouterr().err


def test_a_page_that_became_unwritable_is_an_error(
    fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert run("report", fake, "--output", str(tmp_path / "page.html"), "--seconds", "0.1", "--interval", "0.1") == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err


def test_report_prints_where_its_page_is(fake: FakeKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.html"
    assert run("report", fake, "--output", str(output), "--seconds", "0.1", "--interval", "0.1") == 0
    assert capsys.readouterr().out.startswith(f"{output}: ")
    assert "orders-to-lake: lag 6 in 2 partition(s)" in output.read_text()


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (
            ["--group", "nobody"],
            1,
            "has the groups orders-to-lake. Its query has not started yet, or the group id is wrong.",
        ),
        (["--option", "kafka.sasl.mechanism=NO"], 2, "kafka.sasl.mechanism"),
        (["--bootstrap-servers", "nonsense"], 2, "host:port"),
    ],
)
def test_an_error_names_the_next_action(
    fake: FakeKafka, capsys: pytest.CaptureFixture[str], more: list[str], code: int, said: str
) -> None:
    assert run("report", fake, *more) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out


@pytest.mark.parametrize("command", [[], ["lag"], ["report"], ["explain"]])
def test_help_lists_commands_and_arguments(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m spark_group_source")


def test_unreachable_brokers_are_an_error(
    fake: FakeKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_client, "GroupLagClient", partial(GroupLagClient, timeout=0.2))
    for each in fake.brokers.values():
        each.stop()
    assert run("lag", fake) == 1
    assert "No Kafka broker answered" in capsys.readouterr().err


def test_a_partition_with_unknown_lag_is_named_and_the_total_is_a_minimum() -> None:
    one = seen(0, {"a": {0, 1}}, 7)
    silent = TopicPartition("t", 1)
    ends = {tp: end for tp, end in one.sample.ends.items() if tp != silent}
    unknown = replace(one, sample=replace(one.sample, ends=ends))
    assert "lag at least 7 in 1 partition(s), unknown in 1 (t-1)" in page(GROUP, [unknown])
    assert unknown.partitions(GROUP)[2][:6] == (GROUP, "t", 1, 1000, "-", "-")
