"""The ranges of a batch query, planned on a fake Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import DataLoss, DeadlineExceeded, GroupError, GroupSourceError, OptionError, TopicError
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import check_batch
from spark_group_source.query import batch_query
from spark_group_source.query.batch_query import plan
from tests.fake import FakeKafka, Fault
from tests.fake.handlers import READ
from tests.unit.hand_clock import Hand

GROUP = "g"
LOOKUP_APIS = {"ClusterId", "ApiVersions", "Metadata", "ListOffsets", "FindCoordinator", "OffsetFetch"}


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A topic of three partitions: offsets [2, 6) at times 0, 100, ... 500; [0, 3) at times 0, 100, 200; empty."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=3)
        for partition, count in ((0, 6), (1, 3)):
            for number in range(count):
                running.produce("t", [str(number)], partition, timestamp=100 * number)
        running.truncate("t", 0, 2)
        yield running


LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


Ranges = dict[str, tuple[int, int]]


def planned(fake: FakeKafka, clock: Clock = monotonic, /, **given: str) -> Ranges:
    """Start and end of each partition, by its name."""
    options = {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "t", "kafka.retry.backoff.ms": "50"}
    if given.get("startingOffsets") == "committed":
        options["kafka.group.id"] = GROUP
    parsed = parse_options(options | {"kafka.retry.backoff.max.ms": "100"} | given)
    check_batch(parsed)
    found = plan(parsed, clock)
    assert all(each.topic_id == str(fake.ids["t"]) for each in found), "tasks notice a recreated topic"
    return {str(each.tp): (each.start, each.end) for each in found}


def offsets(first: int, second: int, third: int, topic: str = "t") -> str:
    return f'{{"{topic}":{{"0":{first},"1":{second},"2":{third}}}}}'


def test_a_topic_that_may_not_be_read_fails_the_plan_unless_a_pattern_matches_it(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    fake.create_topic("t-new")
    fake.denied["t-new"] = READ
    with pytest.raises(TopicError, match=r"Topic 't-new'.*Grant the principal DESCRIBE and READ"):
        planned(fake, subscribe="t,t-new")
    server = {"kafka.bootstrap.servers": fake.bootstrap_servers}
    found = plan(parse_options(server | {"subscribePattern": "t.*"}), monotonic)
    assert {each.topic for each in found} == {"t"}
    assert "no READ on topic 't-new'; the query continues without this topic" in caplog.text


@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, [(2, 6), (0, 3), (0, 0)]),
        ({"startingOffsets": offsets(4, -2, 0), "endingOffsets": offsets(5, -1, 0)}, [(4, 5), (0, 3), (0, 0)]),
        ({"startingOffsets": offsets(6, 3, 0)}, [(6, 6), (3, 3), (0, 0)]),
        ({"startingTimestamp": "150", "endingTimestamp": "250"} | LATEST, [(2, 3), (2, 3), (0, 0)]),
        (
            {"startingOffsetsByTimestamp": offsets(400, 0, 0), "endingOffsetsByTimestamp": offsets(500, 100, 0)}
            | LATEST,
            [(4, 5), (0, 1), (0, 0)],
        ),
        ({"endingOffsetsByTimestamp": offsets(9, 9, 9), "endingTimestamp": "300"}, [(2, 3), (0, 3), (0, 0)]),
    ],
)
def test_a_read_starts_and_ends_where_the_options_say(
    fake: FakeKafka, given: dict[str, str], ranges: list[tuple[int, int]]
) -> None:
    assert planned(fake, **given) == dict(zip(("t-0", "t-1", "t-2"), ranges, strict=True))


def test_read_committed_ends_at_the_last_stable_offset(fake: FakeKafka) -> None:
    read_committed = {"kafka.isolation.level": "read_committed"}
    fake.logs["t"][0].stable = 5
    assert planned(fake)["t-0"] == (2, 6)
    assert planned(fake, **read_committed)["t-0"] == (2, 5)
    with pytest.raises(DataLoss, match=r"'endingOffsets' has offset 6 for t-0, whose log holds \[2, 5\)"):
        planned(fake, **read_committed, endingOffsets=offsets(6, 3, 0))
    fake.commit(GROUP, {("t", 0): 6})
    assert planned(fake, **read_committed, startingOffsets="committed")["t-0"] == (5, 5), "the group has read beyond"
    fake.commit(GROUP, {("t", 0): 7})
    with pytest.raises(DataLoss, match=r"committed offset 7 for t-0, whose log holds \[2, 6\)"):
        planned(fake, **read_committed, startingOffsets="committed")


def test_committed_reads_what_the_group_has_not_processed_and_commits_nothing(fake: FakeKafka) -> None:
    fake.commit(GROUP, {("t", 0): 4, ("t", 1): 3}, "told")
    before = dict(fake.group(GROUP).offsets)
    assert planned(fake, startingOffsets="committed") == {"t-0": (4, 6), "t-1": (3, 3), "t-2": (0, 0)}
    assert fake.group(GROUP).offsets == before
    assert not fake.group(GROUP).members
    assert {api for api, _, _ in fake.requests} <= LOOKUP_APIS


@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        ({}, [(4, 6), (0, 3)]),
        ({"startingOffsetsFallback": "latest"}, [(4, 6), (3, 3)]),
        ({"endingTimestamp": "150"}, [(2, 2), (0, 2)]),  # the group is beyond the end
    ],
)
def test_partitions_without_a_commit_are_read_from_earliest_unless_the_fallback_differs(
    fake: FakeKafka, given: dict[str, str], ranges: list[tuple[int, int]]
) -> None:
    fake.commit(GROUP, {("t", 0): 4})
    for times, error_code in ((2, 14), (1, 16)):
        fake.next("OffsetFetch", Fault(error=error_code), times=times)
    found = planned(fake, startingOffsets="committed", **given)
    assert found == dict(zip(("t-0", "t-1", "t-2"), [*ranges, (0, 0)], strict=True))
    with pytest.raises(OptionError, match="'g' has no committed offset of t-1, t-2, and 'startingOffsetsFallback'"):
        planned(fake, startingOffsets="committed", startingOffsetsFallback="fail")


def test_a_commit_in_a_diverged_log_is_data_loss_or_accepted(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    fake.commit(GROUP, {("t", 0): 5, ("t", 1): 2}, epoch=0)
    fake.elect("t", 0, end=3, leader=2)
    fake.elect("t", 1)
    for _ in range(6):
        fake.produce("t", ["new"])
    fake.next("OffsetForLeaderEpoch", Fault(error=74))
    truncated = r"'g' has committed offset 5 for t-0, whose log was truncated at offset 3 .*epoch 0 then, 1 now"
    with pytest.raises(DataLoss, match=truncated):
        planned(fake, startingOffsets="committed")
    found = planned(fake, startingOffsets="committed", failOnDataLoss="false")
    assert found == {"t-0": (3, 9), "t-1": (2, 3), "t-2": (0, 0)}
    assert "The read starts at the first replaced record, because failOnDataLoss is false." in caplog.text


def restore_older_copy(fake: FakeKafka) -> None:
    """The commits are newer than the logs. No answer comes within no time."""
    fake.commit(GROUP, {("t", 0): 5, ("t", 1): 2}, epoch=3)
    fake.next("Metadata", Fault(delay=0.005), times=10_000)


@pytest.mark.parametrize(
    ("trouble", "given", "says"),
    [
        (
            restore_older_copy,
            {"startingOffsets": "committed"},
            r"leaders of t-0, t-1 .*older copy.*give offsets in 'startingOffsets'",
        ),
        (
            lambda fake: fake.next("OffsetFetch", Fault(error=14), times=10_000),
            {"startingOffsets": "committed"},
            r"committed offsets of group 'g' cannot be read.*14 \(COORDINATOR_LOAD",
        ),
        (lambda fake: setattr(fake.logs["t"][1], "leader", None), {}, "t-1 .*no leader"),
    ],
    ids=["a restored copy", "a coordinator that loads for ever", "no leader"],
)
def test_trouble_that_does_not_end_is_an_error_in_time(
    fake: FakeKafka, hand: Hand, trouble: Callable[[FakeKafka], None], given: dict[str, str], says: str
) -> None:
    trouble(fake)
    slow = {"kafka.retry.backoff.ms": "1000", "kafka.retry.backoff.max.ms": "1000"}
    with pytest.raises(DeadlineExceeded, match=says):
        planned(fake, hand, **given, **slow)
    assert hand.now <= batch_query.PLAN_TIMEOUT


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"startingOffsets": offsets(7, 0, 0)}, DataLoss, r"offset 7 for t-0, whose log holds \[2, 6\)"),
        ({"startingOffsets": '{"t":{"0":4,"1":0}}'}, OptionError, r'missing: t-2.*Write.*{"t":{"0":4,"1":0,"2":-2}}'),
        ({"endingOffsets": '{"t":{"0":4,"1":0}}'}, OptionError, r'missing: t-2.*Write.*{"t":{"0":4,"1":0,"2":-1}}'),
        (
            {"startingOffsets": offsets(5, 0, 0), "endingOffsets": offsets(4, 3, 0)},
            OptionError,
            "t-0 starts at 5 and ends at 4. Give 'startingOffsets' and 'endingOffsets'",
        ),
        (
            {"startingOffsets": offsets(5, 0, 0), "endingTimestamp": "250"},
            OptionError,
            "t-0 starts at 5 and ends at 3. Give 'startingOffsets' and 'endingTimestamp'",
        ),
        (
            {"startingTimestamp": "300"},
            OptionError,
            r"t-1, t-2 has no record at or after .*'startingTimestamp' \(300\)\..*'startingOffsetsByTimestampStrategy",
        ),
    ],
)
def test_an_impossible_range_is_an_error_with_offsets_and_options(
    fake: FakeKafka, given: dict[str, str], kind: type[GroupSourceError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        planned(fake, **given)


def test_accepted_offsets_outside_the_log_become_the_nearest(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    given = {"startingOffsets": offsets(0, 9, 0), "endingOffsets": offsets(5, 9, 0), "failOnDataLoss": "false"}
    with caplog.at_level(logging.WARNING):
        assert planned(fake, **given) == {"t-0": (2, 5), "t-1": (3, 3), "t-2": (0, 0)}
    assert "offset 0 for t-0, whose log holds [2, 6); 9 for t-1, whose log holds [0, 3)" in caplog.text
    fake.commit(GROUP, {("t", 0): 1})
    assert planned(fake, startingOffsets="committed", failOnDataLoss="false")["t-0"] == (2, 6)


def test_lost_records_of_committed_offsets_are_data_loss(fake: FakeKafka) -> None:
    fake.commit(GROUP, {("t", 0): 1, ("t", 1): 0})
    with pytest.raises(DataLoss, match="has committed offset 1 for t-0"):
        planned(fake, startingOffsets="committed")


def test_a_group_that_may_not_be_read_is_an_error_at_once(fake: FakeKafka) -> None:
    fake.next("OffsetFetch", Fault(error=30))
    with pytest.raises(GroupError, match="READ on the group"):
        planned(fake, startingOffsets="committed")


@pytest.mark.parametrize("answers", [True, False])
def test_a_lone_lagging_broker_is_not_believed_about_which_partitions_exist_unless_the_other_stays_silent(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Broker 1 does not know the topic's second partition, and broker 2 is silent for a while or for good."""
    monkeypatch.setattr(batch_query, "CONFIRM_TIMEOUT", 60.0 if answers else 2.0)
    monkeypatch.setattr("spark_group_source.wire.stale_metadata.ANSWER_TIMEOUT", 0.2)
    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t", partitions=1)
        fake.freeze_metadata(1)
        fake.create_topic("t", partitions=2)
        fake.produce("t", ["x"], 0)
        fake.produce("t", ["x", "y"], 1)
        silent = Fault(silent=True, broker=2)
        for api in ("Metadata", "ApiVersions"):
            fake.next(api, silent, times=1000)
        options = {"kafka.bootstrap.servers": f"127.0.0.1:{fake.brokers[1].port}"}
        if answers:
            threading.Timer(1.0, fake.clear_faults).start()
        found = planned(fake, **options)
    expected = {"t-0": (0, 1)}
    if answers:
        expected["t-1"] = (0, 2)
    assert found == expected


def test_a_pattern_without_matches_reads_nothing_and_warns(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    parsed = parse_options({"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribePattern": "none-.*"})
    with caplog.at_level(logging.WARNING):
        assert plan(parsed) == []
    assert "none-.*" in caplog.text
