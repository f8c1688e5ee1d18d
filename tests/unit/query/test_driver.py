"""A driver that plans batches while its membership changes. tests/contract has its delivery contract."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.errors import GroupSourceError, OptionError
from spark_group_source.group.commits import COMMIT_TAG
from spark_group_source.group.description import GroupDescription, MemberDescription
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import RequestFailed
from spark_group_source.offsets import BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.query.driver import Driver
from spark_group_source.query.other_members import log_other_members
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.query_log import REPORT_INTERVAL
from tests.drivers import drivers, spans
from tests.fake import FakeKafka, Fault
from tests.waiting import eventually

Start = Callable[..., Driver]


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t", partitions=2)
        running.create_topic("u")
        running.produce("t", [str(each) for each in range(10)], partition=0)
        yield running


@pytest.fixture
def start(fake: FakeKafka) -> Iterator[Start]:
    base = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "subscribe": "t",
        "startingOffsets": "earliest",
        "kafka.heartbeat.interval.ms": "50",
    }
    with drivers(base) as begin:
        yield begin


def test_a_partition_lost_and_assigned_again_during_planning_is_left_out_of_the_batch(
    fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start()
    ends = driver._planner.end_offsets.look_up

    def meanwhile(owned: Owned) -> Mapping[TopicPartition, int]:
        monkeypatch.setattr(driver._planner.end_offsets, "look_up", ends)
        fake.commit("g", {("t", 0): 8}, COMMIT_TAG)
        fake.expire("g", driver._member.snapshot().member_id)
        eventually(lambda: driver.counters.lost == 2)
        eventually(lambda: len(driver._assigned_partitions.tracker.positions(driver._member.snapshot())) == 2)
        return ends(owned)

    monkeypatch.setattr(driver._planner.end_offsets, "look_up", meanwhile)
    nothing = driver.plan_batch(BatchOffset(), None)
    assert not nothing.reads()
    assert spans(driver.plan_batch(nothing, None)) == {0: (8, 10)}


def test_starting_offsets_of_a_new_checkpoint_must_name_all_partitions(fake: FakeKafka, start: Start) -> None:
    with pytest.raises(OptionError, match=r'missing: t-1.*{"t":{"0":4,"1":-2}}'):
        start(startingOffsets='{"t":{"0":4}}')
    assert not fake.request_count("JoinGroup")
    logged = BatchOffset.from_ranges([OffsetRange("t", 0, 0, 6, str(fake.ids["t"]))])
    assert spans(start(logged, startingOffsets='{"t":{"0":4}}').plan_batch(logged, None)) == {0: (6, 10)}


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_a_changed_option_must_name_a_partition_still_to_start(fake: FakeKafka, start: Start, option: str) -> None:
    read = OffsetRange("t", 0, 0, 6, str(fake.ids["t"]))
    logged = replace(BatchOffset.from_ranges([read], "g"), pinned_starts={TopicPartition("t", 1): PinnedStart()})
    with pytest.raises(OptionError, match=rf"'{option}' must name .*missing: t-1.*Write, .*{{\"t\":{{\"0\":4,\"1\":"):
        start(logged, **{option: '{"t":{"0":4}}'})
    fake.commit("g", {("t", 1): 0})
    assert start(logged, **{option: '{"t":{"0":4}}'}).plan_batch(logged, None).reads(), "a commit needs no option"


def test_the_start_of_a_query_is_logged_before_there_is_anything_to_read(fake: FakeKafka, start: Start) -> None:
    driver = start(startingOffsets="latest")
    first = driver.plan_batch(BatchOffset(), None)
    assert first.ends() == {TopicPartition("t", 0): 10, TopicPartition("t", 1): 0}
    assert not first.reads()
    assert driver.plan_batch(first, None) is first
    driver.close()
    fake.produce("t", ["more"], partition=0)
    assert spans(start(first, startingOffsets="latest", resetOffsetsOnStart="true").plan_batch(first, None)) == {
        0: (10, 11)
    }


def test_the_error_for_a_checkpoint_of_another_group_names_both_groups(fake: FakeKafka, start: Start) -> None:
    logged = start().plan_batch(BatchOffset(), None)
    with pytest.raises(GroupSourceError, match=r"belongs to the group 'g', and 'kafka.group.id' is 'other'"):
        start(logged, **{"kafka.group.id": "other"})
    assert fake.request_count("JoinGroup") == 2, "nobody joined the other group"


class Times:
    """The clock of a driver's planner and log."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        for part in (driver._planner, driver._query_log):
            monkeypatch.setattr(part, "_clock", lambda: self.now)
        for lines in (driver._query_log._reports, driver._query_log._slow_batches):
            lines.clock = lambda: self.now


def test_the_counters_are_logged_every_few_minutes_if_one_has_changed(
    fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.next("OffsetCommit", Fault(delay=0.2))
    driver = start()
    times = Times(driver, monkeypatch)

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if "last heartbeat" in each.getMessage()]

    with caplog.at_level(logging.INFO):
        end = driver.plan_batch(BatchOffset(), None)
        assert driver.plan_batch(end, None) is end
        assert not lines(), "not at once"
        for expected in (1, 1):
            times.now += REPORT_INTERVAL + 1
            driver.plan_batch(end, None)
            assert len(lines()) == expected
        fake.produce("t", ["more"])
        following = driver.plan_batch(end, None)
        assert following != end
        assert driver.plan_batch(following, None) is following
        assert len(lines()) == 1
        times.now += REPORT_INTERVAL + 1
        driver.plan_batch(following, None)
        driver.close()
    assert "group g: owns 2 partition(s). Counts since the query began: batches 1, offsets 10, joins 2," in lines()[0]
    assert "joins 2, rebalances 1, revoked 0," in lines()[0]
    assert "lost 0, commits 2, failed commits 0; last heartbeat" in lines()[0]
    assert "batches 2, offsets 11, " in lines()[1]
    said = r"since the last such line the coordinator answered .*2 JoinGroup in \d+ ms \(at most \d+\)"
    assert re.search(said, lines()[0])
    commits = re.search(r"2 OffsetCommit in (\d+) ms \(at most (\d+)\)", lines()[0])
    assert commits
    assert 100 <= int(commits[1]) < int(commits[2]) >= 200, "the first was slow, the second was not"
    assert "JoinGroup" not in lines()[1]
    (ended,) = [each.getMessage() for each in caplog.records if "has ended" in each.getMessage()]
    assert "1 LeaveGroup in " in ended


SLOW = "but a revocation waits for at most"


def test_slow_batches_log_a_warning_with_the_setting_that_they_need_at_most_every_half_hour(
    fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start()
    times = Times(driver, monkeypatch)
    end = driver.plan_batch(BatchOffset(), None)
    for seconds, warnings in ((240.0, 0), (241.0, 1), (900.0, 1), (899.0, 1), (300.0, 2)):
        times.now += seconds
        fake.produce("t", ["more"])
        driver._planner.end_offsets.expire()
        end = driver.plan_batch(end, None)
        assert end.reads(), "each call completes a batch and plans the next"
        assert caplog.text.count(SLOW) == warnings
    for _ in range(3):
        assert driver.plan_batch(end, None) is end
        times.now += 10_000.0
    assert caplog.text.count(SLOW) == 2, "an idle query has no slow batch"
    for seconds, warnings in ((239.0, 2), (2_000.0, 3)):
        fake.produce("t", ["more"])
        end = driver.plan_batch(end, None)
        times.now += seconds
        driver.complete(end)  # as reported: the time to the next trigger does not count
        times.now += 10_000.0
        assert caplog.text.count(SLOW) == warnings
    assert f"group g: a batch took 241 s until its commit, {SLOW} 240 s" in caplog.text
    assert "Make batches shorter with targetBatchDuration=120s, or raise" in caplog.text
    assert "kafka.max.poll.interval.ms (now 300000) above 301000" in caplog.text


def test_a_slow_batch_of_a_query_with_a_target_is_warned_of_without_the_advice_to_raise_it(
    fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start(targetBatchDuration="30s")
    times = Times(driver, monkeypatch)
    end = driver.plan_batch(BatchOffset(), None)
    times.now += 300.0
    driver.complete(end)
    (line,) = [each.getMessage() for each in caplog.records if SLOW in each.getMessage()]
    assert f"a batch took 300 s until its commit, {SLOW} 240 s" in line
    assert "targetBatchDuration=30s makes the next ones shorter. If this happens often, raise kafka.max.poll" in line
    assert "targetBatchDuration=120s" not in line


def quits(old: object, new: object) -> None:
    sys.exit("no credentials")


def test_a_callback_that_calls_sys_exit_ends_the_query_which_leaves_its_group(fake: FakeKafka, start: Start) -> None:
    with pytest.raises(GroupSourceError, match="SystemExit.'no credentials'"):
        start(startingOffsetsCallback=f"{__name__}:quits")
    eventually(lambda: not fake.group("g").members)


def test_a_batch_waits_for_the_minimum_or_the_delay_and_keeps_the_byte_limit(fake: FakeKafka, start: Start) -> None:
    driver = start(subscribe="u", minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    end = BatchOffset()

    def size(new: int = 0) -> int:
        """The size of the next batch, after that many new records of 1 kB."""
        nonlocal end
        for _ in range(new):
            fake.produce("u", ["x" * 1000])
        driver._planner.end_offsets.expire()
        before, end = end, driver.plan_batch(end, None, 10_000)
        return 0 if end is before else sum(each.size for each in end.reads())

    assert size(1) == 1, "the first batch never waits"
    assert size(49) == 0
    driver._planner._planned_at -= 3500
    assert size() == 0
    driver._planner._planned_at -= 100
    assert size() == pytest.approx(9, abs=1)
    assert size(20) == pytest.approx(9, abs=2)


OWN = "app-t-local-1-77"


def group_of(*client_ids: str) -> GroupDescription:
    return GroupDescription("Stable", "", tuple(MemberDescription("m", each, "h") for each in client_ids))


@pytest.mark.parametrize(
    ("answer", "logged"),
    [
        (group_of(OWN, "app-u-local-1-78", "app-t-local-12-79", "mine"), 1),
        (group_of(OWN, "app-t-local-2-79"), 0),
        (RequestFailed(ErrorAction.REDISCOVER, "moved"), 0),
        (RequestFailed(ErrorAction.FATAL, "denied"), 0),
    ],
)
def test_members_of_the_application_are_logged(answer: object, logged: int, caplog: pytest.LogCaptureFixture) -> None:
    answers = [answer]
    offsets: Any = SimpleNamespace(describe=lambda deadline: answers.pop())
    with caplog.at_level(logging.INFO):
        log_other_members(offsets, "g", OWN, "local-1", time.monotonic)
        log_other_members(offsets, "g", OWN, "", time.monotonic)
    assert (
        caplog.text.count("2 members of this application share this group, among them app-u-local-1-78. Each") == logged
    )
    assert (len(caplog.records), answers) == (logged, []), "there is one lookup, and none without an application id"


def test_a_topic_of_unknown_id_is_read_later(fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start()
    with monkeypatch.context() as outage:
        outage.setattr(driver._planner._topic_ids, "ids_of", lambda topics: {})
        nothing = driver.plan_batch(BatchOffset(), None)
    assert not nothing.reads()
    assert [each.topic_id for each in driver.plan_batch(nothing, None).reads()] == [str(fake.ids["t"])]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_query_has_four_connections_to_its_broker(fake: FakeKafka, protocol: str) -> None:
    """One for the lookups of each of its three threads, and one for the membership."""
    base = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "kafka.group.protocol": protocol,
        "subscribe": "t",
        "startingOffsets": "earliest",
    }
    with drivers(base) as begin:
        driver = begin()
        planned = driver.plan_batch(BatchOffset(), None)
        assert spans(planned) == {0: (0, 10)}
        driver.complete(planned)
        driver._assigned_partitions.committer.wait()
        assert fake.group("g").offsets["t", 0][0] == 10
        assert fake.request_count("ApiVersions") == 4
        assert fake.request_count("FindCoordinator") == 1


def test_the_reason_to_log_a_batch_is_in_the_debug_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "spark_group_source.query.planner")
    driver = start()
    driver.plan_batch(BatchOffset(), None)
    assert caplog.messages == ["group g: logging a batch, because the checkpoint is new"]


def test_a_target_that_a_revocation_does_not_wait_for_is_warned_of_at_the_start(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start(targetBatchDuration="240s")
    assert "targetBatchDuration" not in caplog.text
    start(targetBatchDuration="1h", **{"kafka.group.id": "other"})
    assert f"targetBatchDuration is 3600 s, {SLOW} 240 s" in caplog.text
    assert "Set targetBatchDuration to 120s, or raise kafka.max.poll.interval.ms (now 300000) above" in caplog.text


def test_a_warning_says_that_spark_continues_at_an_offset_that_no_batch_ended_at(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start()
    first = driver.plan_batch(BatchOffset(), None)
    driver.plan_batch(BatchOffset(), None)  # again, because Spark has not run it
    assert "Spark continues at another offset" not in caplog.text
    other = replace(first, checkpoint="another")
    for _ in range(2):
        driver.plan_batch(other, None)
    assert caplog.text.count("Spark continues at another offset than the end of the batch that it was given") == 1
