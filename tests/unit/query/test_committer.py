"""Commits that wait, fail or are rejected. ``tests/contract/test_trouble.py`` has those of a member in its group."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, CommitFailed, GroupError, GroupSourceError
from spark_group_source.group.commits import CommitResult, CommittedOffset
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.offsets import TopicPartition
from tests.unit.query.own_commits import ours
from tests.unit.query.world import AT_4, FAILED, OWNER, A, B, Query, World, restored


@pytest.mark.parametrize("error", [GroupError("no", error_code=29), AuthenticationFailed("no")])
def test_a_commit_that_is_never_allowed_is_fatal(world: World, error: GroupSourceError) -> None:
    query = Query(world).assign().read({A: 6})
    world.refused = RequestFailed(ErrorAction.FATAL, "why", error=error)
    with pytest.raises(type(error), match="no"):
        query.commit()
    with pytest.raises(type(error), match="no"):
        Query(world).assign()


def test_only_partitions_owned_in_the_snapshot_are_committed(world: World) -> None:
    query = Query(world).assign().read({A: 6, B: 5})
    assert query.commit(replace(OWNER, owned={B: 3}))
    assert world.commits[-1] == {B: 5}


def test_a_commit_waits_at_most_its_timeout_for_another_commit(world: World) -> None:
    query = Query(world, **{"offsetCommit.timeoutMs": "10"}).assign().read({A: 6})
    seen: list[bool] = []
    other = threading.Thread(target=lambda: seen.append(query.commit()))

    def meanwhile() -> None:
        other.start()
        other.join(90.0)

    world.meanwhile = meanwhile
    assert query.commit()
    assert seen == [False]
    assert world.offsets[A].offset == 6


def test_a_commit_that_waited_for_another_one_has_half_of_its_time_for_the_response(world: World) -> None:
    query = Query(world).assign().read({A: 6})

    def acquire(*, timeout: float) -> bool:
        world.hand.sleep(timeout)
        return True

    query.committer._one_commit = SimpleNamespace(acquire=acquire, release=lambda: None)  # type: ignore[assignment]
    assert query.committer.commit(OWNER, world.clients, Deadline.after(4.0, world.hand))
    assert world.waits[-1] == 2.0


def test_commits_that_fail_within_a_retry_interval_are_one_failure(world: World) -> None:
    query = Query(world, onCommitFailure="fail", **{"offsetCommit.numRetries": "1"}).assign().read({A: 6})
    world.commits_refused = FAILED
    for _ in range(3):  # a start, a batch and a retry at once
        assert not query.commit()
    world.hand.now += 1.0
    with pytest.raises(CommitFailed, match="in 2 tries"):
        query.commit()


def test_a_commit_without_any_time_is_not_sent_and_is_no_failure_that_ends_the_query(world: World) -> None:
    query = Query(world, onCommitFailure="fail", **{"offsetCommit.numRetries": "0"}).assign().read({A: 6})
    world.commits_refused = FAILED
    assert not query.committer.commit(OWNER, world.clients, Deadline.after(0.0, world.hand))
    world.commits_refused = None
    assert query.commit()
    assert world.offsets[A].offset == 6


@pytest.mark.parametrize("me", [OWNER, replace(OWNER, member_id="")])
def test_a_commit_that_meets_a_rebalance_is_no_failure_that_ends_the_query(world: World, me: Membership) -> None:
    query = Query(world, onCommitFailure="fail", **{"offsetCommit.numRetries": "0"}).assign().read({A: 6})
    world.commits_refused = replace(FAILED, action=ErrorAction.REJOIN)
    with nullcontext() if me.member_id else pytest.raises(CommitFailed):
        assert not query.commit(me)
    world.commits_refused = None
    assert query.commit()
    assert world.offsets[A].offset == 6


def test_commits_that_meet_a_rebalance_are_a_warning_only_if_they_last_longer_than_a_session(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(world, **{"kafka.session.timeout.ms": "30000"}).assign().read({A: 6})
    world.commits_refused = replace(FAILED, action=ErrorAction.RESET_GENERATION)
    with caplog.at_level("INFO"):
        for _ in range(30):
            query.commit()
            world.hand.now += 1.0
    assert caplog.text.count("rejected during a rebalance") == 1
    assert all(each.levelname == "INFO" for each in caplog.records)
    for _ in range(3):
        world.hand.now += 1.0
        query.commit()
    assert "all commits of the last 31 s were rejected: why" in caplog.text
    assert [each.levelname for each in caplog.records].count("WARNING") == 1
    world.commits_refused = None
    assert query.commit()
    world.commits_refused = replace(FAILED, action=ErrorAction.REJOIN)
    query.read({A: 7}).commit()
    assert [each.levelname for each in caplog.records].count("WARNING") == 1, "another rebalance begins"


def test_two_rebalances_hours_apart_without_a_commit_between_them_are_both_routine(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(world).assign().read({A: 6})
    world.commits_refused = replace(FAILED, action=ErrorAction.RESET_GENERATION)
    with caplog.at_level("INFO"):
        query.commit()
        query.lose(A, B)
        world.hand.now += 7200.0
        world.commits_refused = None
        world.offsets = {A: ours(6), B: ours(5)}
        query.assign()
        world.commits_refused = replace(FAILED, action=ErrorAction.REJOIN)
        query.read({A: 7}).commit()
    assert caplog.text.count("rejected during a rebalance") == 2
    assert "all commits of the last" not in caplog.text


def test_the_same_failure_of_commits_is_one_line_a_minute(world: World, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(world).assign().read({A: 6})
    world.commits_refused = FAILED
    for _ in range(59):
        query.commit()
        world.hand.now += 1.0
    assert caplog.text.count("a commit failed and will be retried: why") == 1
    world.commits_refused = replace(FAILED, reason="another reason")
    query.commit()
    world.hand.now += 60.0
    query.commit()
    assert caplog.text.count("will be retried: another reason") == 2


def test_failures_of_commits_that_take_turns_are_one_line_a_minute_each(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(world).assign().read({A: 6})
    for second in range(59):
        reason = "16 (NOT_COORDINATOR)" if second % 2 else f"no answer within {second / 10:.1f} s"
        world.commits_refused = replace(FAILED, reason=reason)
        query.commit()
        world.hand.now += 1.0
    assert caplog.text.count("a commit failed and will be retried") == 2


@pytest.mark.parametrize(("room", "lineage"), [(60, 7), (0, 0)])
def test_an_id_that_is_too_long_is_left_out_before_the_lineage(
    world: World, monkeypatch: pytest.MonkeyPatch, room: int, lineage: int
) -> None:
    def commit(me: Membership, offsets: Mapping[TopicPartition, CommittedOffset], *_: Any) -> CommitResult:
        long = {tp: 12 for tp, each in offsets.items() if len(each.metadata) > room}  # OFFSET_METADATA_TOO_LARGE
        kept = {tp: each for tp, each in offsets.items() if tp not in long}
        world.offsets |= kept
        return CommitResult(frozenset(kept), long)

    monkeypatch.setattr(world, "commit", commit)
    restored(world, AT_4).assign(A)
    assert (world.offsets[A].lineage, world.offsets[A].checkpoint) == (lineage, "")
