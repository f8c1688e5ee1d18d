"""The end of a query: what is completed is committed before the member leaves, whatever the coordinator does. On the
fake."""

from __future__ import annotations

import time
from functools import partial

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import CommitFailed
from spark_group_source.query import driver, ownership
from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka, Fault
from tests.fake.faults import set_error

NO_RETRY = {"offsetCommit_retryIntervalMs": "600000"}
"""Only the end itself sends a commit again."""


def end_after_a_batch(query: Query) -> float:
    """Completes the running batch as its report does, and ends the query at once; returns how long the end took."""
    query.finish()
    query.driver.complete(query.end)
    began = time.monotonic()
    query.close()
    return time.monotonic() - began


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(error=error_code) for error_code in (-1, 7, 14, 15, 16, 27, 28, 3)),
        Fault(drop="before"),
        Fault(drop="after"),
        Fault(truncate=9),
    ],
    ids=str,
)
def test_a_completed_batch_is_committed_at_the_end_although_several_commits_fail(on_fake: Bench, fault: Fault) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    on_fake.next("OffsetCommit", fault, times=2 if fault.error == 3 else 4)
    end_after_a_batch(query)
    assert on_fake.committed()[0] == 5


def test_the_last_batch_is_committed_although_its_completion_was_not_processed(on_fake: Bench) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    query.finish()
    on_fake.next("OffsetCommit", Fault(error=16), times=3)
    query.driver.close(completed=query.end)
    assert on_fake.committed()[0] == 5


@pytest.mark.parametrize("loading", [0.0, 6.0])
def test_a_coordinator_that_moves_as_the_query_ends_has_its_commit(
    on_fake: Bench, fake: FakeKafka, loading: float
) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    fake.move_coordinator(2, loading)
    end_after_a_batch(query)
    assert on_fake.committed()[0] == 5
    assert not fake.group(on_fake.group).members


@pytest.mark.parametrize("unanswered", [1, 2])
def test_a_commit_without_an_answer_is_sent_again_at_the_end(on_fake: Bench, unanswered: int) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    on_fake.next("OffsetCommit", Fault(silent=True, drop="before"), times=unanswered)
    end_after_a_batch(query)
    assert on_fake.committed()[0] == 5


def test_a_query_without_membership_commits_at_its_end_too(fake: FakeKafka, group: str) -> None:
    bench = Bench(fake, fake.create_topic("topic", partitions=4), group, {"startingOffsets": "earliest"})
    query = bench.start_batch(5, assign='{"topic": [0, 1, 2, 3]}', **NO_RETRY)
    fake.move_coordinator(2, 3.0)
    end_after_a_batch(query)
    assert bench.committed()[0] == 5
    bench.close()


def test_a_query_that_fails_because_of_its_commits_tries_them_again_at_its_end(on_fake: Bench) -> None:
    options = {"onCommitFailure": "fail", "offsetCommit_numRetries": "0"}
    query = on_fake.start_batch(5, **NO_RETRY, **options)
    on_fake.next("OffsetCommit", Fault(error=16), times=4)
    query.finish()
    with pytest.raises(CommitFailed):
        query.poll()
    query.close()
    assert on_fake.committed()[0] == 5


def test_a_run_commits_its_last_batch_if_it_ends_in_a_failure(on_fake: Bench) -> None:
    on_fake.produce(5)
    run = on_fake.query(None, **NO_RETRY).start(available_now=True)
    run.begin()
    on_fake.next("OffsetCommit", Fault(error=15), times=4)
    end_after_a_batch(run)
    assert on_fake.committed()[0] == 5


def test_starts_are_committed_at_the_end_too_but_it_waits_less_for_them(on_fake: Bench) -> None:
    on_fake.next("OffsetCommit", Fault(error=14), times=3)
    query = on_fake.join(None, **NO_RETRY)
    eventually(lambda: query.driver.counters.failed_commits, "the first try")
    began = time.monotonic()
    query.close()
    assert time.monotonic() - began < 6.0
    assert on_fake.committed() == dict.fromkeys(range(4), 0)


def test_what_stays_uncommitted_is_the_last_line_and_the_member_leaves_in_time(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    on_fake.next("OffsetCommit", Fault(error=14), times=10_000)
    with caplog.at_level("INFO"):
        took = end_after_a_batch(query)
    tries = driver.CLOSE_TIMEOUT - driver.CLOSE_MEMBER_TIMEOUT - ownership.LAST_LOOKUP_TIMEOUT
    assert tries - 2.0 < took < driver.CLOSE_TIMEOUT
    assert not fake.group(on_fake.group).members
    assert caplog.records[-1].levelname == "WARNING"
    assert "ended without committing topic-0 at 5: OffsetCommit failed with 14 (" in caplog.messages[-1]
    assert caplog.text.count("a commit failed and will be retried") == 1, "the same reason is one line"
    after = on_fake.start()
    assert on_fake.has_faults("OffsetCommit")
    assert [(read.start, read.end) for read in after.begin()] == [(0, 5)]


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(edit=partial(set_error, "OffsetCommit", error_code=error_code)) for error_code in (7, 25, 110)),
        Fault(silent=True),
        Fault(drop="after"),
    ],
    ids=["7", "25", "110", "silent", "dropped"],
)
def test_what_the_group_has_is_not_reported_as_uncommitted(
    on_fake: Bench, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    """The coordinator applies each commit, and its answer is lost or an error."""
    query = on_fake.start_batch(5, **NO_RETRY)
    on_fake.next("OffsetCommit", fault, times=10_000)
    end_after_a_batch(query)
    assert on_fake.committed()[0] == 5
    assert "without committing" not in caplog.text


def test_the_end_waits_for_nothing_once_the_partitions_are_lost(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    fake.expire(on_fake.group, query.me.member_id)
    assert end_after_a_batch(query) < driver.CLOSE_TIMEOUT / 2
    # A member that had joined again by then owns the partition again, and commits. Otherwise whichever thread hears of
    # the end first says what stays uncommitted.
    has_joined_again = on_fake.committed()[0] == 5
    is_told = "lost topic-0" in caplog.text or "ended without committing topic-0 at 5" in caplog.text
    assert has_joined_again or is_told


def test_a_permission_that_stays_missing_ends_the_tries_with_the_offsets(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start_batch(5, **NO_RETRY)
    on_fake.next("OffsetCommit", Fault(error=30), times=10_000)  # a permission that was there before may come back
    end_after_a_batch(query)
    assert "ended without committing topic-0 at 5: OffsetCommit failed with 30 (" in caplog.text


def test_what_a_session_that_ends_meanwhile_leaves_uncommitted_is_the_last_line(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The member's thread looks for a coordinator, and so cannot log the loss."""
    query = on_fake.start_batch(5, **NO_RETRY)
    fake.move_coordinator(None)
    end_after_a_batch(query)
    assert caplog.records[-1].levelname == "WARNING"
    assert "ended without committing topic-0 at 5: [DEADLINE_EXCEEDED] Group '" in caplog.messages[-1]


def test_a_commit_does_not_wait_for_a_coordinator_that_returns_no_offsets(fake: FakeKafka, group: str) -> None:
    bench = Bench(fake, fake.create_topic("topic", partitions=4), group, {"startingOffsets": "earliest"})
    query = bench.start_batch(5, assign='{"topic": [0, 1, 2, 3]}', **NO_RETRY)
    fake.next("OffsetFetch", Fault(silent=True), times=10_000)
    query.finish()
    query.driver.close(Deadline.after(6.0), query.end)
    fake.clear_faults()
    assert bench.committed()[0] == 5
    bench.close()


def test_a_query_that_can_only_leave_says_what_stays_uncommitted(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread waits for a commit."""
    query = on_fake.start_batch(5, **NO_RETRY)
    query.finish()
    on_fake.next("OffsetCommit", Fault(silent=True))
    query.driver.complete(query.end)
    query.driver.leave()
    assert not fake.group(on_fake.group).members
    assert caplog.records[-1].levelname == "WARNING"
    assert "ended without committing topic-0 at 5: another commit was in progress" in caplog.messages[-1]
