"""Positions and commits of two threads: one thread acts while the other waits for an answer."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import CheckpointError, DataLoss, GroupError, GroupSourceError, OptionError
from spark_group_source.group.commits import RESET_TAG, CommittedOffset, commit_metadata
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Phase, RequestFailed
from spark_group_source.offsets import BatchOffset, OffsetRange, Partitions, PinnedStart, TopicPartition
from spark_group_source.query.starts.rules import StartRule
from tests.unit.hand_clock import Hand
from tests.unit.query.own_commits import ours
from tests.unit.query.world import AT_4, BOTH, EXISTING, FAILED, MINE, OWNER, A, B, Query, World, restored, with_id

PATTERN = {"subscribePattern": "t"}


def test_start_positions_of_assigned_partitions_are_committed_at_once(world: World) -> None:
    world.offsets[B] = ours(4)
    assert Query(world).assign().positions() == {A: 2, B: 4}
    assert world.commits == [{A: 2}]


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"startingOffsets": '{"t":{"0":-2,"1":3}}'}, {A: 2, B: 3}),
        ({"startingTimestamp": "300", "startingOffsets": "latest"}, {A: 3, B: 3}),
        ({"startingTimestamp": "700", "startingOffsetsByTimestampStrategy": "latest"}, {A: 7, B: 5}),
        ({"startingOffsets": "committed"}, {A: 10, B: 5}),
        ({"startingOffsets": "committed", "startingOffsetsFallback": "earliest"}, {A: 2, B: 0}),
    ],
)
def test_starting_offsets_and_times_apply_to_partitions_without_a_commit(
    world: World, given: dict[str, str], starts: dict[TopicPartition, int]
) -> None:
    assert Query(world, **given).assign().positions() == starts
    assert world.commits == [starts]
    world.offsets = {A: ours(9)}
    assert Query(world, **given).assign().positions() == {A: 9, B: starts[B]}
    if "committed" not in given.values():
        assert Query(world, **given, resetOffsetsOnStart="true").assign().positions() == starts


COVERS_ALL = '{"t":{"0":5,"1":3},"*":-2}'


@pytest.mark.parametrize("retried", [False, True])
def test_prior_commits_of_a_partition_assigned_later_refuse_a_moved_query(world: World, retried: bool) -> None:
    world.offsets = {B: CommittedOffset(4)}
    query = Query(world, startingOffsets=COVERS_ALL)
    if retried:
        world.refused = FAILED
        query.assign(A)
        world.refused = None
    with pytest.raises(OptionError, match="t-1 at 4 and not 3"):
        query.assign(A)
    assert not world.commits


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets=earliest"),
        ({"startingTimestamp": "5"}, "startingTimestamp=5"),
        ({"startingOffsets": "committed"}, ""),
        ({"startingOffsets": "earliest", "resetOffsetsOnStart": "true"}, ""),
    ],
)
def test_a_start_that_commits_make_unused_is_logged_if_the_user_has_set_it(
    world: World, caplog: pytest.LogCaptureFixture, given: dict[str, str], unused: str
) -> None:
    caplog.set_level("INFO", "spark_group_source")
    world.offsets = {A: ours(9)}
    Query(world, **given).assign()
    lines = [each for each in caplog.messages if "does not apply to" in each]
    assert len(lines) == bool(unused)
    for line in lines:
        assert line.startswith(
            f"group g: {unused} does not apply to the 1 partition(s) of which the group has committed"
        )
        assert "set resetOffsetsOnStart to true" in line


@pytest.mark.parametrize(
    ("given", "ignored"),
    [
        ({"startingOffsets": "committed"}, ""),
        ({"startingOffsets": "latest"}, "startingOffsets=latest"),
        ({"startingOffsets": '{"t":{"0":11,"1":0}}'}, "startingOffsets"),
        ({"startingTimestamp": "5", "resetOffsetsOnStart": "true"}, "startingTimestamp=5 and resetOffsetsOnStart"),
    ],
)
def test_the_options_that_a_checkpoint_makes_unused_are_logged(
    world: World, caplog: pytest.LogCaptureFixture, given: dict[str, str], ignored: str
) -> None:
    caplog.set_level("INFO", "spark_group_source")
    Query(world, {A: 9}, **given)
    lines = [each for each in caplog.messages if "continues at its checkpoint" in each]
    assert len(lines) == bool(ignored)
    for line in lines:
        assert f"ignores {ignored} for the partitions in it" in line
    caplog.clear()
    Query(world, **given)
    assert "continues at its checkpoint" not in caplog.text, "the checkpoint is new"


def test_the_log_names_the_option_by_which_a_partition_starts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "spark_group_source")
    world.offsets = {A: ours(9)}
    starts = Query(world).assign().positions()
    listed = f"t-0 at 9 (the committed offset), t-1 at {starts[B]} (startingOffsets=earliest)"
    assert f"group g: starts to read {listed}" in caplog.messages


def test_later_partitions_keep_their_commits_if_the_query_resets_its_first_assignment(world: World) -> None:
    world.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    query = Query(world, startingOffsets=COVERS_ALL, resetOffsetsOnStart="true")
    assert query.assign(A).assign(B).positions() == {A: 5, B: 4}
    assert world.commits == [{A: 5}, {B: 4}], "the commit of another program gets our tag"
    restarted = Query(world, startingOffsets=COVERS_ALL, resetOffsetsOnStart="true")
    restarted.restore(BatchOffset({}, "g", EXISTING, frozenset({A})))
    world.offsets[A] = CommittedOffset(8)
    assert restarted.assign(B).assign(A).positions() == {A: 5, B: 4}, "it died before any start of the first assignment"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": '{"t":{"0":11,"1":0}}'}, r"offset 11 for t-0, whose log holds \[2, 10\)"),
        ({"startingTimestamp": "700"}, "t-1 has no record at or after the time in option 'startingTimestamp'"),
    ],
)
def test_a_starting_offset_outside_the_log_is_not_committed(world: World, given: dict[str, str], says: str) -> None:
    with pytest.raises(GroupSourceError, match=says):
        Query(world, **given).assign()
    assert not world.commits
    if "startingOffsets" in given:
        assert Query(world, **given, failOnDataLoss="false").assign().positions() == {A: 10, B: 0}
    world.offsets = {A: ours(9), B: ours(0)}
    assert Query(world, **given).assign().positions() == {A: 9, B: 0}, "the group has commits"


def test_the_retry_of_a_commit_does_not_wait_for_unresolved_starts(world: World) -> None:
    world.logs.pop(B)
    query = Query(world).assign().read({A: 6})
    world.refused = FAILED
    world.meanwhile = lambda: setattr(world.hand, "now", 5.0)
    query.resolve(frozenset({B}), OWNER, world.clients)
    world.refused = None
    query.retry()
    assert world.offsets[A].offset == 2, "an interval after the last try has ended"
    world.hand.now += 1.0
    query.retry()
    assert world.offsets[A].offset == 6


@pytest.mark.parametrize(("answering", "start"), [("one leader", 2), ("no leader", 0), ("no broker", 0)])
def test_a_recreated_topic_is_committed_at_once_at_earliest_or_at_0(world: World, answering: str, start: int) -> None:
    world.offsets = {A: ours(100), B: ours(100)}
    query = Query(world, {A: 100, B: 100}).assign()
    world.logs = {A: (2, 10)} if answering == "one leader" else {}
    world.without_brokers = answering == "no broker"
    query.restart_topics({"t": "new"}, OWNER, world.clients)
    assert query.positions() == {A: start, B: 0}
    assert {tp: each.offset for tp, each in world.offsets.items()} == query.positions()
    # Lost, read by another member and assigned again: that member's commit is one in the new topic.
    query.lose(A)
    world.offsets[A] = ours(7)
    assert query.assign(A).positions()[A] == 7


def test_a_recreated_topic_is_not_read_before_the_group_has_assigned_it(world: World) -> None:
    """With KIP-848 another member may own the partition in the new topic."""
    former, new = UUID(int=1), UUID(int=2)
    mine = replace(OWNER, topic_ids={"t": former})
    world.topic_id = str(former)
    query = Query(world, failOnDataLoss="false").assign(me=mine).read({A: 9})
    world.topic_id = str(new)
    world.offsets.clear()
    query.restart_topics({"t": str(new)}, mine, world.clients)
    query.resolve(BOTH, mine, world.clients)
    assert not world.offsets
    assert not query.positions()
    assert not query.tracker.awaited()
    query.partitions_revoked(BOTH)
    query.assign(me=replace(OWNER, topic_ids={"t": new}))
    assert query.positions() == {A: 2, B: 0} == world.commits[-1]


def test_no_revocation_waits_for_the_start_in_a_topic_that_may_not_be_read(world: World) -> None:
    world.may_not_read = {"t"}
    query = Query(world, **PATTERN).assign()
    assert not query.positions()
    assert not world.commits
    assert not query.tracker.awaited()
    world.may_not_read = set()
    world.hand.now += 60.0
    query.retry()
    assert query.positions() == {A: 2, B: 0} == world.commits[-1]


def test_a_start_that_is_denied_at_the_coordinator_is_looked_up_again(world: World) -> None:
    denied = GroupError("no", error_code=29, topics=["t"])
    world.refused = RequestFailed(ErrorAction.FATAL, "why", error=denied)
    query = Query(world, **PATTERN).assign()
    assert not query.positions()
    assert query.permissions.denied == {"t"}
    world.refused = None
    world.hand.now += 60.0
    query.retry()
    assert query.positions() == {A: 2, B: 0}


def test_a_revocation_waits_until_the_start_is_looked_up_but_for_no_leader(world: World) -> None:
    world.offsets[A] = CommittedOffset(4)
    world.refused = FAILED
    query = Query(world).assign()
    assert query.tracker.awaited() == BOTH
    world.refused, world.without_brokers = None, True
    revoking = replace(OWNER, phase=Phase.REVOKING, revoking=BOTH, revoke_by=5.0)
    world.waits.clear()
    for waits_for in (frozenset({B}), frozenset()):  # a lookup may be cut short, but not two
        world.hand.now = query.maintenance_due(revoking)
        query.maintain_offsets(revoking, Deadline.after(45.0 / 2))
        assert query.tracker.awaited() == waits_for
    assert world.commits == [{A: 4}], "which needs no leader"
    assert max(world.waits) <= 5.0, "a revocation has a deadline"
    assert (query.tracker.awaited(), query.tracker.unresolved(OWNER)) == (frozenset(), frozenset({B}))
    assert query.maintenance_due(revoking) == math.inf
    assert query.maintenance_due(replace(revoking, revoking=frozenset({A}))) < math.inf, "it keeps the other one"


@pytest.mark.parametrize("moved_by", ["rewind", "recreation"])
def test_a_late_commit_does_not_stay_the_last_word_after_its_partition_was_moved(world: World, moved_by: str) -> None:
    query = Query(world).assign().read({A: 6})
    world.refused = replace(FAILED, unanswered=True)
    query.commit()
    world.refused = None
    if moved_by == "rewind":
        query.rewind({A: 2}, {A: 0}, query.tracker.positions(OWNER), OWNER, world.clients)
    else:
        query.restart_topics({"t": "new"}, OWNER, world.clients)
    moved = world.offsets[A]
    assert moved.offset == 2
    world.offsets[A] = ours(6)
    world.hand.now += 1.0
    assert query.maintenance_due(OWNER) <= world.hand()
    query.maintain_offsets(OWNER, Deadline.after(45.0 / 2))  # as the member's thread does between its heartbeats
    assert world.offsets[A] == moved


def test_a_query_that_died_before_its_reset_was_logged_does_not_reset_again(world: World) -> None:
    given = {"resetOffsetsOnStart": "true", "startingOffsets": "latest"}
    Query(world, **given).assign()
    assert {tp: each.offset for tp, each in world.offsets.items()} == {A: 10, B: 5}
    world.logs = {A: (2, 30), B: (0, 25)}
    again = Query(world, **given).assign()
    assert again.positions() == {A: 10, B: 5}
    again.read({}).commit()
    assert not any(each.tagged_reset for each in world.offsets.values())
    assert Query(world, **given).assign().positions() == {A: 30, B: 25}, "the last one has logged its reset"


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "logged"])
def test_a_partition_that_was_reset_once_resumes_at_the_next_owners_commit(world: World, committed: bool) -> None:
    world.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    query = Query(world, resetOffsetsOnStart="true")
    if committed:
        query.assign()
    else:
        query.assign_without_commit().plan({A: 5})
    query.partitions_revoked(BOTH)
    world.offsets = {A: ours(9, 2**50), B: ours(5, 2**50)}
    assert query.assign().positions() == {A: 9, B: 5}


def test_the_tag_of_a_reset_is_removed_when_a_batch_is_logged_even_after_a_crash(world: World) -> None:
    world.offsets = {A: CommittedOffset(10, RESET_TAG), B: CommittedOffset(4, RESET_TAG)}
    query = Query(world, {A: 10}, resetOffsetsOnStart="true").assign()
    assert world.offsets == {A: ours(10), B: CommittedOffset(4, RESET_TAG)}
    query.read({}).commit()
    assert world.offsets == {A: ours(10), B: ours(4)}


def test_latest_is_pinned_when_the_query_starts_and_kept_by_its_checkpoint(world: World) -> None:
    query = Query(world, startingOffsets="latest")
    world.logs = {A: (2, 30), B: (0, 25)}
    assert query.assign(A).positions() == {A: 10}
    first = query.tracker.pinned_starts().without({A})
    assert first.offsets == {B: PinnedStart("", 5, 7)}
    restarted = Query(world, startingOffsets="latest")
    logged = BatchOffset({A: OffsetRange(*A, 10, 10)}, "g", first.offsets)
    restarted.restore(BatchOffset.from_json(logged.as_json()))
    assert restarted.assign().positions() == {A: 10, B: 5}


@pytest.mark.parametrize("pinned", [PinnedStart("former"), PinnedStart("former", 5, 7)], ids=["unknown", "known"])
def test_no_pinned_start_or_reset_of_a_topic_is_one_of_its_successor(world: World, pinned: PinnedStart) -> None:
    world.topic_id = "new"
    world.offsets = {A: ours(4)}
    query = Query(world, startingOffsets="latest", resetOffsetsOnStart="true")
    logged = BatchOffset({}, "g", {A: pinned, B: pinned}, frozenset({A}))
    query.restore(BatchOffset.from_json(logged.as_json()))
    assert query.assign().positions() == {A: 4, B: 0}


def test_latest_is_pinned_for_the_partitions_and_topic_ids_of_its_lookup(world: World) -> None:
    query = Query(world, startingOffsets="latest")
    query.resolver.starting_offsets._latest = None  # as before the first call of Spark
    query.resolver.starting_offsets.pin_latest({A: PinnedStart("former")}, world.clients)
    query.restore(BatchOffset(), {A: PinnedStart("new"), B: PinnedStart("new")})
    assert query.tracker.pinned_starts().offsets == {A: PinnedStart("former", 10, 7)}
    assert query.assign(B).positions() == {B: 0}, "it was created after the lookup"


def test_a_commit_read_before_its_topic_is_recreated_is_no_position_in_the_successor(world: World) -> None:
    world.topic_id = "former"
    world.offsets = {A: ours(4)}
    world.meanwhile = lambda: setattr(world, "topic_id", "new")
    query = Query(world).assign(A)
    assert {owned.topic_id for owned in query.tracker.positions(OWNER).values()} == {"former"}


def test_a_move_is_as_old_as_the_beginning_of_the_lookup_that_found_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner may find a later move while a slow coordinator answers."""
    clock = Hand()
    clock.now = 1_000.0
    monkeypatch.setattr("spark_group_source.query.starts.resolver.time", SimpleNamespace(time=clock))
    world.offsets = {A: CommittedOffset(4)}
    world.meanwhile = lambda: setattr(clock, "now", 1_060.0)
    Query(world).assign(A)
    assert world.offsets[A].lineage == 1_000_000


@pytest.mark.parametrize("pinned", ["when the query started", "later", "in a batch without rows"])
def test_latest_is_kept_if_its_partition_is_lost_before_the_commit(world: World, pinned: str) -> None:
    logs = dict(world.logs)
    if pinned == "later":
        world.logs.clear()
    query = Query(world, startingOffsets="latest")
    world.logs |= logs
    query.assign_without_commit()
    if pinned == "in a batch without rows":
        query.plan({})
    query.lose(A, B)
    world.logs = {A: (2, 30), B: (0, 25)}
    assert query.assign().positions() == {A: 10, B: 5}


@pytest.mark.parametrize("meanwhile", ["before", "after"])
def test_a_batch_that_is_logged_while_a_pinned_start_is_looked_up_does_not_make_an_added_partition_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    query = Query(world, startingOffsets="latest")
    logged = query.tracker.logged

    def of_then(*args: Any) -> Any:
        if meanwhile == "before":
            query.tracker.planned(first)
        found = logged(*args)
        if meanwhile == "after":
            query.tracker.planned(first)
        return found

    query.assign_without_commit()
    first = BatchOffset.from_ranges(OffsetRange(*tp, at, at) for tp, at in query.positions().items())
    query.lose(A, B)
    monkeypatch.setattr(query.tracker, "logged", of_then)
    assert query.assign().positions() == {A: 10, B: 5}


def test_a_replayed_batch_that_others_have_read_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.offsets = {A: ours(7), B: ours(0)}
    query = Query(world)
    query.restore(BatchOffset.from_ranges([OffsetRange(*A, 3, 9), OffsetRange(*B, 0, 4)], "g"), replayed=True)
    query.assign()
    assert "this query has just replayed: t-0 [3, 7). A sum" in caplog.text
    query.lose(A, B)
    assert query.assign().positions() == {A: 9, B: 4}
    assert caplog.text.count("has just replayed") == 1, "what this query has committed since is its own"


def test_a_move_in_the_future_logs_one_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    now = round(time.time() * 1000)
    world.offsets = {A: ours(4, now)}
    query = Query(world).assign(A)
    assert "in the future" not in caplog.text
    world.offsets[B] = ours(4, now + 3_600_000)
    for _ in range(2):
        query.lose(B)
        query.assign(B)
    assert caplog.text.count("in the future") == 1


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_reset_was_to_replace_is_no_later_decision_before_its_commit(world: World, committed: bool) -> None:
    world.offsets[A] = CommittedOffset(7)
    world.commits_refused = None if committed else FAILED
    query = Query(world, resetOffsetsOnStart="true").assign(A).read({A: 4})
    assert query.positions() == {A: 4}
    query.lose(A)
    world.offsets[A] = CommittedOffset(7)  # an operator's decision, or the same as before
    world.commits_refused = None
    assert query.assign(A).positions() == {A: 7 if committed else 4}
    assert world.commits[-1] == {A: 7 if committed else 4}


def test_what_a_reset_was_to_replace_is_a_later_decision_after_another_commit(world: World) -> None:
    world.offsets[A] = CommittedOffset(7)
    world.commits_refused = FAILED
    query = Query(world, resetOffsetsOnStart="true").assign(A).read({A: 4})
    query.lose(A)
    world.offsets[A] = CommittedOffset(5, commit_metadata({"lineage": 2 * round(time.time() * 1000)}))
    assert query.assign(A).positions() == {A: 5}
    query.lose(A)
    world.offsets[A] = CommittedOffset(7)
    assert query.assign(A).positions() == {A: 7}


def test_both_requests_for_start_positions_have_the_one_deadline(world: World) -> None:
    Query(world).partitions_assigned(BOTH, OWNER, Deadline.after(3.0))
    assert len(world.waits) == 2
    assert max(world.waits) <= 3.0


@pytest.mark.parametrize(
    ("silent", "took", "pause"), [((B,), 5.0, 20.0), ((B,), 14.0, 30.0), ((B,), 0.0, 1.0), ((A, B), 5.0, 1.0)]
)
def test_lookups_of_unresolved_starts_are_rarer_the_longer_they_block_other_partitions(
    world: World, silent: tuple[TopicPartition, ...], took: float, pause: float
) -> None:
    leaderless = {tp: world.logs.pop(tp) for tp in silent}
    world.meanwhile = lambda: setattr(world.hand, "now", took)
    query = Query(world).assign()
    world.logs |= leaderless
    for waited, unresolved in ((pause - 0.5, set(silent)), (0.5, set())):
        world.hand.now += waited
        query.retry()
        assert query.tracker.unresolved(OWNER) == unresolved


def test_a_start_in_an_open_transaction_delays_no_other_and_is_logged_once_a_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.offsets, world.unstable = {A: ours(4), B: ours(3)}, {B}
    query = Query(world).assign()
    assert query.tracker.positions(OWNER)[A].position == 4
    assert query.tracker.unresolved(OWNER) == {B}
    began, asked = world.hand.now, len(world.waits)
    while world.hand.now < began + 59.0:
        world.hand.now += 0.5
        query.retry()
    assert caplog.text.count("no start position for t-1 yet: why") == 1
    assert len(world.waits) - asked < 12, "the backoff grows"
    world.hand.now += 10.0
    query.retry()
    assert caplog.text.count("no start position for t-1 yet: why") == 2
    world.unstable = set()
    world.hand.now += 10.0
    query.retry()
    assert query.tracker.positions(OWNER)[B].position == 3


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_log_without_first_records_existed_if_too_few_brokers_said_what_exists(world: World, confirmed: bool) -> None:
    query = Query(world, startingOffsets="latest")
    query.resolver.restore(BatchOffset(), {B: PinnedStart()}, world.clients, confirmed=confirmed)
    if confirmed:
        with pytest.raises(DataLoss, match="t-0 at offset 2"):
            query.assign()
    else:
        assert query.assign().positions() == {A: 10, B: 5}


def test_a_restart_takes_no_partition_for_one_that_existed_when_the_query_first_started(world: World) -> None:
    query = Query(world, startingOffsets="latest")
    logged = BatchOffset({B: OffsetRange(*B, 0, 3, "")}, "g")
    query.resolver.restore(logged, {B: PinnedStart()}, world.clients, confirmed=False)
    with pytest.raises(DataLoss, match="t-0 at offset 2"):
        query.assign()


def test_a_failed_commit_does_not_wait_for_the_backoff_of_lookups(world: World) -> None:
    world.unstable = {B}
    query = Query(world).assign()
    for _ in range(5):  # the backoff is at its maximum
        world.hand.now += 10.0
        query.retry()
    world.commits_refused = FAILED
    query.read({A: 6})
    query.commit()
    world.commits_refused = None
    world.hand.now += 1.0
    query.retry()
    assert world.offsets[A].offset == 6


def test_the_commits_that_hide_in_a_transaction_are_checked_at_the_next_lookup(world: World) -> None:
    world.offsets, world.unstable = {B: CommittedOffset(4)}, {B}
    query = Query(world, startingOffsets=COVERS_ALL).assign(A)
    world.unstable = set()
    with pytest.raises(OptionError, match="t-1 at 4 and not 3"):
        query.assign(B)


def test_a_revocation_waits_for_no_commit_to_a_recreated_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(world).assign().read({A: 6})
    world.refused = FAILED
    query.commit()
    world.refused = None
    told: list[Partitions] = []
    monkeypatch.setattr(query.committer._member, "commits_changed", lambda: told.append(query.tracker.awaited()))
    world.logs.clear()
    query.restart_topics({"t": "new"}, OWNER, world.clients)
    assert told[-1:] == [frozenset()]


def test_an_old_checkpoint_may_belong_to_another_group(world: World, caplog: pytest.LogCaptureFixture) -> None:
    Query(world, {A: 9}).assign()
    assert "the checkpoint does not name its group" in caplog.text


# A checkpoint that is older than the commits of its query.


def by(offset: int, lineage: int = 0, checkpoint: str = MINE) -> CommittedOffset:
    """A commit by the query with this checkpoint."""
    return CommittedOffset(offset, commit_metadata({"lineage": lineage, "checkpoint": checkpoint}))


REPEAT: dict[str, Any] = {"restoredCheckpoint": "repeat"}
FAIL: dict[str, Any] = {"restoredCheckpoint": "fail"}


@pytest.mark.parametrize(
    ("commit", "lacks"),
    [
        (by(6, 7), "t-0 [4, 6)"),
        (by(6, 8), "t-0 [4, 6)"),  # after a rewind, or a repeat with the same backup
        (by(3, 8), ""),  # a rewind that this query has logged since: it reads on from there
        (by(4, 7), ""),
        (by(6, 6), ""),  # late
        (by(6, 7, "another"), ""),
        (CommittedOffset(6, commit_metadata({"lineage": 7})), ""),
        (CommittedOffset(6, commit_metadata({"lineage": 7, "checkpoint": 5})), ""),
        (CommittedOffset(6, MINE), ""),
    ],
)
def test_a_checkpoint_is_older_if_it_has_committed_beyond_its_end(
    world: World, commit: CommittedOffset, lacks: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.offsets[A] = commit
    restored(world, AT_4).assign(A)
    assert ("the checkpoint is older" in caplog.text) == bool(lacks)
    assert lacks in caplog.text
    followed = restored(world, AT_4, **FAIL)
    world.offsets[A] = commit
    with pytest.raises(CheckpointError, match="older than the commits") if lacks else nullcontext():
        followed.assign(A)
    unset, repeated = restored(world, AT_4), restored(world, AT_4, **REPEAT)
    for query in unset, repeated:
        world.offsets[A] = commit
        query.assign(A)
    assert repeated.positions()[A] == (4 if lacks else unset.positions()[A])
    start = repeated.tracker.positions(OWNER)[A].start
    assert start is not None
    assert (start.rule is StartRule.REPEATED) == bool(lacks)


def test_no_checkpoint_without_an_id_is_older(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.offsets[A] = by(6, checkpoint="")
    Query(world, {A: 4}, **FAIL).assign(A)
    assert "the checkpoint is older" not in caplog.text


def test_a_partition_that_the_checkpoint_lacks_is_repeated_by_the_rules_for_partitions_without_a_commit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.offsets = {A: by(6), B: by(4)}
    at_4 = replace(AT_4, lineage=0)
    assert restored(world, at_4).assign().positions() == {A: 6, B: 4}
    assert "does not read t-0 [4, 6), t-1 before 4 again" in caplog.text
    query = restored(world, at_4, **REPEAT).assign()
    assert query.positions() == {A: 4, B: 0}
    assert "reads t-0 [4, 6), t-1 [0, 4) again" in caplog.text
    assert caplog.text.count("does not read") == 1
    assert world.offsets[B].lineage == query.tracker.positions(OWNER)[B].lineage > 0, "it holds for every later owner"
    assert not world.offsets[B].checkpoint


def test_commits_of_a_recreated_topic_do_not_show_an_older_checkpoint(world: World) -> None:
    world.topic_id, world.offsets[A] = "new", by(6)
    assert restored(world, replace(AT_4, topic_id="old"), **FAIL).assign(A).positions() == {A: 6}


def test_a_repeat_whose_commit_failed_is_repeated_when_the_partition_comes_back(world: World) -> None:
    world.offsets[A] = by(6, 7)
    query = restored(world, AT_4, **REPEAT)
    world.commits_refused = FAILED
    query.assign(A).lose(A)
    world.commits_refused = None
    assert query.assign(A).positions() == {A: 4}
    assert world.offsets[A].offset == 4
    assert world.offsets[A].lineage > 7
    world.offsets[A] = by(9, world.offsets[A].lineage)
    query.lose(A)
    assert query.assign(A).positions() == {A: 9}, "a copy that runs at the same time has read on"


def test_copies_of_a_checkpoint_do_not_repeat_each_others_batches_without_an_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    copies = [restored(world, AT_4, **REPEAT) for _ in range(2)]
    world.offsets[A] = by(6, 7)
    starts = []
    for end in range(7, 11):
        query = copies[end % 2].assign(A)
        starts.append(query.positions()[A])
        lineage = query.tracker.positions(OWNER)[A].lineage
        query.tracker.planned(with_id(OffsetRange(*A, starts[-1], end, lineage=lineage)))
        assert query.tracker.in_flight is not None
        query.tracker.completed(query.tracker.in_flight)
        query.commit()
        query.lose(A)
    assert starts == [4, 4, 8, 9]
    assert caplog.text.count("again") == 2


def test_only_what_another_query_has_read_of_a_replayed_batch_is_logged_as_such(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.offsets = {A: by(6, 7), B: by(4, 0, "another")}
    restored(world, AT_4, OffsetRange(*B, 0, 5), replayed=True).assign()
    assert "this query has just replayed: t-1 [0, 4). A sum" in caplog.text
