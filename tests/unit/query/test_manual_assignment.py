"""``assign``: a query without membership reads fixed partitions and commits to the group. On a fake Kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest

from spark_group_source.errors import DataLoss, GroupError, TopicError
from spark_group_source.group.commits import COMMIT_TAG, commit_metadata
from spark_group_source.offsets import BatchOffset, OffsetRange
from spark_group_source.query import available_now, topic_validator
from spark_group_source.query.driver import Driver
from spark_group_source.query.ownership import RENEW_EVERY
from tests.drivers import drivers, spans
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.waiting import TIMEOUT, eventually

SOME = '{"t": [0, 2]}'
Start = Callable[..., Driver]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_validator, "UNKNOWN_TOPIC_TIMEOUT", 0.3)
    monkeypatch.setattr(available_now, "POLL_INTERVALS", (0.01, 0.05))


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """A topic of three partitions, with five records each."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=3)
        for number in range(3):
            running.produce("t", [str(each) for each in range(5)], partition=number)
        yield running


@pytest.fixture
def start(fake: FakeKafka) -> Iterator[Start]:
    base = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "startingOffsets": "earliest",
        "offsetCommit.retryIntervalMs": "10",
    }
    with drivers(base) as begin:

        def start(logged: BatchOffset | None = None, *, available_now: bool = False, **given: str) -> Driver:
            read = given if "subscribe" in given else {"assign": SOME} | given
            return begin(logged, available_now=available_now, **read)

        yield start


def committed(fake: FakeKafka) -> dict[int, int]:
    return {number: offset for (_, number), (offset, _) in fake.group("g").offsets.items()}


def test_exactly_the_assigned_partitions_are_read_and_committed_without_a_join(fake: FakeKafka, start: Start) -> None:
    driver = start()
    assert committed(fake) == {0: 0, 2: 0}, "each has a committed position at once"
    end = driver.plan_batch(BatchOffset(), None)
    assert spans(end) == {0: (0, 5), 2: (0, 5)}
    assert committed(fake) == {0: 0, 2: 0}, "a batch that is not completed is not committed"
    assert driver.plan_batch(end, None) is end
    assert committed(fake) == {0: 5, 2: 5}
    assert {(each.generation, each.member_id) for each in fake.commits} == {(-1, "")}
    ended = commit_metadata({"checkpoint": end.checkpoint})
    assert all(text == ended for _, text in fake.group("g").offsets.values())
    asked = {api for api, _, _ in fake.requests}
    assert not asked & {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"}


def test_commits_of_deleted_topics_are_final(fake: FakeKafka, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    driver = start(failOnDataLoss="false")
    end = driver.plan_batch(BatchOffset(), None)
    fake.delete_topic("t")
    successful = driver.counters.commits
    with caplog.at_level(logging.WARNING):
        eventually(lambda: driver.plan_batch(end, None) is end and driver._planner.end_offsets.deleted)
        commits = len(fake.commits)
        for _ in range(20):  # each is due for a retry
            time.sleep(0.02)
            driver.plan_batch(end, None)
    assert len(fake.commits) == commits
    assert caplog.text.count(" was rejected, and will be retried: ") == 1
    assert driver.counters.commits == successful


def test_unchanged_offsets_are_committed_again_each_hour_without_other_effects(
    fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, hand = start(), Hand()
    monkeypatch.setattr(driver._assigned_partitions._renewal, "clock", hand)
    monkeypatch.setattr(driver._assigned_partitions._renewal, "_due_at", RENEW_EVERY)
    end = driver.plan_batch(BatchOffset(), None)
    assert driver.plan_batch(end, None) is end
    fake.group("g").offsets.clear()  # as the brokers do when offsets.retention.minutes have passed since the commit
    hand.now = RENEW_EVERY - 1
    assert driver.plan_batch(end, None) is end
    assert committed(fake) == {}
    hand.now = RENEW_EVERY
    fake.next("OffsetCommit", Fault(error=15))
    eventually(lambda: driver.plan_batch(end, None) is end and committed(fake) == {0: 5, 2: 5})
    ended = commit_metadata({"checkpoint": end.checkpoint})
    assert all(text == ended for _, text in fake.group("g").offsets.values())
    sent = len(fake.commits)
    assert driver.plan_batch(end, None) is end
    assert len(fake.commits) == sent
    counters = driver.counters
    assert (counters.batches, counters.offsets) == (1, 10)


def test_a_late_commit_of_the_former_process_does_not_stay_the_last_word(fake: FakeKafka, start: Start) -> None:
    """The coordinator cannot tell it from one of this process: neither has a generation."""
    fake.commit("g", {("t", 0): 5, ("t", 2): 5}, COMMIT_TAG)
    driver = start()
    end = driver.plan_batch(BatchOffset(), None)
    assert driver.plan_batch(end, None) is end
    fake.commit("g", {("t", 0): 3}, COMMIT_TAG)
    eventually(lambda: driver.plan_batch(end, None) is end and committed(fake) == {0: 5, 2: 5})
    fake.commit("g", {("t", 0): 2})
    for _ in range(20):  # each is due for a look
        time.sleep(0.02)
        driver.plan_batch(end, None)
    assert committed(fake) == {0: 2, 2: 5}, "an operator's decision"


def test_a_run_renews_the_groups_commits_even_if_there_is_nothing_to_read(fake: FakeKafka, start: Start) -> None:
    fake.commit("g", {("t", 0): 5, ("t", 2): 5}, COMMIT_TAG)
    run = start(available_now=True)
    assert [each.offsets for each in fake.commits] == [{("t", 0): 5, ("t", 2): 5}]
    assert not run.plan_batch(BatchOffset(), None).reads()
    assert len(fake.commits) == 1


def test_a_member_renews_nothing(fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_group_source.query.ownership.RENEW_EVERY", 0.0)
    member = start(subscribe="t")
    monkeypatch.setattr(member._assigned_partitions._retry_timer, "_interval", 0.0)
    end = member.plan_batch(BatchOffset(), None)
    assert member.plan_batch(end, None) is end
    sent = len(fake.commits)
    assert member.plan_batch(end, None) is end
    assert len(fake.commits) == sent


def test_a_group_with_members_fails_the_start_with_what_to_do(fake: FakeKafka, start: Start) -> None:
    start(subscribe="t")
    with pytest.raises(GroupError, match=r"'g' has 1 member.*127\.0\.0\.1.*its own 'kafka.group.id', or stop"):
        start()


@pytest.mark.parametrize("error_code", [-1, 15])
def test_a_query_starts_even_if_the_group_cannot_be_described(fake: FakeKafka, start: Start, error_code: int) -> None:
    fake.next("DescribeGroups", Fault(error=error_code))
    assert spans(start().plan_batch(BatchOffset(), None)) == {0: (0, 5), 2: (0, 5)}
    fake.next("DescribeGroups", Fault(error=30))
    with pytest.raises(GroupError, match="READ on the group"):
        start()


def test_a_member_that_joins_later_makes_commits_fail_and_the_query_continues_with_a_warning(
    fake: FakeKafka, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start()
    member = start(subscribe="t")
    assert member._assigned_partitions.counters.rebalances == 1
    end = driver.plan_batch(BatchOffset(), None)
    with caplog.at_level(logging.WARNING):
        assert driver.plan_batch(end, None) is end
    assert "25 (UNKNOWN_MEMBER_ID): the group has members." in caplog.text
    assert "its own 'kafka.group.id', or stop the members" in caplog.text
    assert committed(fake)[0] == 0
    member.close()
    eventually(lambda: driver.plan_batch(end, None) is end and committed(fake)[0] == 5)


@pytest.mark.parametrize(
    ("assign", "says"),
    [
        ('{"t": [0, 3, 9]}', r"2 assigned partition\(s\) do not exist: t-3, t-9\. Correct 'assign'"),
        ('{"nowhere": [0], "t": [0]}', "Topic 'nowhere' cannot be read.*Correct 'assign'"),
    ],
)
def test_an_error_at_the_start_names_partitions_that_do_not_exist(start: Start, assign: str, says: str) -> None:
    with pytest.raises(TopicError, match=says):
        start(assign=assign)


def test_the_start_waits_for_a_new_partition(fake: FakeKafka, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_validator, "UNKNOWN_TOPIC_TIMEOUT", TIMEOUT)
    monkeypatch.setattr(
        "spark_group_source.query.topic_validator.time.sleep", lambda _: fake.create_topic("t", partitions=4)
    )
    assert start(assign='{"t": [3]}').plan_batch(BatchOffset(), None).reads() == []
    assert committed(fake) == {3: 0}


def test_a_deleted_partition_is_data_loss(fake: FakeKafka, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    logged = BatchOffset.from_ranges([OffsetRange("t", number, 4, 4, str(fake.ids["t"])) for number in (0, 7)])
    with pytest.raises(DataLoss, match="t-7 does not exist any more.*failOnDataLoss"):
        start(logged, assign='{"t": [0, 7]}')
    with caplog.at_level(logging.WARNING):
        driver = start(logged, assign='{"t": [0, 7]}', failOnDataLoss="false")
    assert "t-7 does not exist any more. The query continues with the others" in caplog.text
    assert spans(driver.plan_batch(logged, None)) == {0: (4, 5)}


def test_the_log_has_no_heartbeat_and_no_slow_batch_because_no_revocation_waits_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start()
    end = driver.plan_batch(BatchOffset(), None)
    later = time.monotonic() + 10_000
    monkeypatch.setattr(driver._planner, "_clock", lambda: later)
    caplog.clear()
    driver.complete(end)
    assert caplog.messages == []
    driver._query_log._reports.due_at = 0.0
    with caplog.at_level(logging.INFO):
        driver.plan_batch(end, None)
    assert "group g: owns 2 partition(s). Counts since the query began: batches 1" in caplog.text
    assert "heartbeat" not in caplog.text


def test_a_permission_that_never_worked_ends_the_query_before_its_next_batch(fake: FakeKafka, start: Start) -> None:
    fake.next("OffsetCommit", Fault(error=7))  # that of the starts: the group accepts no commit before the batch's
    driver = start()
    end = driver.plan_batch(BatchOffset(), 2)
    fake.next("OffsetCommit", Fault(error=30))
    driver.complete(end)
    driver._assigned_partitions.committer.ended(within=TIMEOUT)
    with pytest.raises(GroupError, match="Grant the principal READ on the group"):
        driver.plan_batch(end, 2)
