"""The tracker of offsets: contract sentences 2, 4, 5 and 6, and what two threads make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from spark_group_source.group.commits import CommittedOffset, commit_metadata
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import UNKNOWN_EPOCH, BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import MAX_REJECTIONS
from spark_group_source.query.starts.pinned import PinnedStarts
from spark_group_source.query.starts.rules import Start, StartRule
from tests.unit.hand_clock import Hand
from tests.unit.query.own_commits import ours

A, B, C, D = (TopicPartition("t", number) for number in range(4))
OTHER = TopicPartition("u", 0)
BOTH = frozenset({A, B})
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})
LOGGED, COMMITTED, UNTAGGED, REPLAYED = StartRule.LOGGED, StartRule.COMMITTED, StartRule.UNTAGGED, StartRule.REPLAYED
CALLBACK = StartRule.CALLBACK


def begin(tracker: OffsetTracker, start: Start, committed: CommittedOffset | None, now: int = 0) -> None:
    """Partition A is assigned, and starts there; a lineage that begins has the id ``now``."""
    tracker.partitions_assigned(frozenset({A}), OWNER)
    with tracker.start_lookup(frozenset({A})) as lookup:
        commits = {} if committed is None else {A: committed}
        start = start._replace(lineage=now) if start.lineage is None else start
        tracker.record_starts(lookup, {A: start}, commits, {}, 0.0)


def remove(tracker: OffsetTracker) -> None:
    tracker.remove(frozenset({A}))


def complete(tracker: OffsetTracker) -> None:
    """The batch in flight is completed, if there is one."""
    if (in_flight := tracker.in_flight) is not None:
        assert tracker.completed(in_flight)


AT_5 = ours(5)


def owning(start: int = 5, committed: CommittedOffset | None = AT_5) -> OffsetTracker:
    """A tracker in which partition A starts there, with this commit of the group."""
    tracker = OffsetTracker()
    begin(tracker, Start(start, COMMITTED), committed)
    return tracker


def pending(tracker: OffsetTracker) -> dict[TopicPartition, int]:
    return {tp: owned.completed for tp, owned in tracker.pending(OWNER).items()}


def plan(tracker: OffsetTracker, end: int) -> OffsetTracker:
    owned = tracker._owned[A]
    tracker.reserve(frozenset({A}))
    tracker.planned(
        BatchOffset.from_ranges([OffsetRange(*A, owned.position, end, owned.topic_id, lineage=owned.lineage)])
    )
    return tracker


def test_a_rejected_commit_stays_pending_but_a_revocation_waits_only_for_a_few_retries() -> None:
    tracker = owning(0, None)
    for rejections in range(MAX_REJECTIONS):
        assert tracker.uncommitted() == {A}
        assert tracker.commits_rejected(tracker.pending(OWNER)) == (set() if rejections else {A}), "it is new only once"
    assert (pending(tracker), tracker.uncommitted()) == ({A: 0}, frozenset())
    tracker.confirmed({A: 0}, tracker.pending(OWNER))
    complete(plan(tracker, 3))
    assert tracker.uncommitted() == {A}
    tracker.commits_rejected(tracker.pending(OWNER))
    remove(tracker)
    begin(tracker, Start(0, COMMITTED), None)
    assert tracker.uncommitted() == {A}, "the rejections were those of the former assignment"


def test_a_rejected_commit_of_a_deleted_partition_is_not_pending_until_brokers_know_the_partition_again() -> None:
    tracker = owning(0, None)
    tracker.note_deleted({A})
    assert pending(tracker) == {A: 0}, "the coordinator has not rejected it"
    tracker.commits_rejected(tracker.pending(OWNER))
    assert not tracker.pending(OWNER)
    tracker.note_deleted(())
    assert pending(tracker) == {A: 0}


def back_in_mid_batch(start: Start, committed: CommittedOffset | None) -> OffsetTracker:
    """A tracker that has lost partition A in a batch [5, 9) and has it again, with this start and commit."""
    tracker = plan(owning(), 9)
    remove(tracker)
    begin(tracker, start, committed)
    return tracker


@pytest.mark.parametrize(("committed", "before"), [(ours(5), {}), (None, {A: 5})])
def test_a_batch_in_flight_whose_partition_comes_back_is_committed_only_when_completed(
    committed: CommittedOffset | None, before: dict[TopicPartition, int]
) -> None:
    tracker = back_in_mid_batch(Start(9, LOGGED), committed)
    assert pending(tracker) == before
    complete(tracker)
    assert pending(tracker) == {A: 9}


def with_id(end: int, lineage: int = 0, begin: int = 5) -> BatchOffset:
    """The offset of a batch in the checkpoint with an id."""
    return replace(BatchOffset.from_ranges([OffsetRange(*A, begin, end, lineage=lineage)]), checkpoint="id")


def ids(tracker: OffsetTracker) -> dict[int, str]:
    """The checkpoint's id in each pending commit, by its offset."""
    return {owned.completed: owned.checkpoint for owned in tracker.pending(OWNER).values()}


def restored(logged: BatchOffset) -> OffsetTracker:
    tracker = OffsetTracker()
    tracker.restore(logged, PinnedStarts())
    return tracker


def test_a_commit_has_the_checkpoints_id_if_the_checkpoint_has_logged_its_offset_as_an_end() -> None:
    tracker = owning(5, None)
    assert ids(tracker) == {5: ""}, "a start"
    tracker.planned(with_id(9))
    assert ids(tracker) == {5: ""}, "a batch that Spark may not have logged"
    complete(tracker)
    assert ids(tracker) == {9: "id"}
    tracker.rewind({A: 7}, {A: 1}, {A: tracker._owned[A]})
    assert ids(tracker) == {7: ""}, "a decision that is not logged"


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (Start(9, LOGGED), {9: "id"}),
        (Start(9, REPLAYED, None), {9: ""}),
        (Start(9, CALLBACK), {9: "id"}),
        (Start(12, CALLBACK), {12: ""}),
        (Start(9, COMMITTED, 3), {9: ""}),
    ],
)
def test_the_commit_of_a_start_has_the_checkpoints_id_only_at_its_end_in_its_lineage(
    start: Start, found: dict[int, str]
) -> None:
    tracker = restored(with_id(9))
    begin(tracker, start, None, now=8)
    assert ids(tracker) == found


def test_the_commit_of_a_start_has_no_id_if_only_a_batch_in_flight_or_a_rewind_shows_its_offset() -> None:
    tracker = restored(with_id(5))
    begin(tracker, Start(9, COMMITTED), ours(9))
    tracker.planned(with_id(9, begin=9))
    remove(tracker)
    begin(tracker, Start(9, LOGGED), None)
    assert ids(tracker) == {9: ""}, "a crash before Spark logs the batch leaves 5"
    complete(tracker)
    remove(tracker)
    begin(tracker, Start(9, LOGGED), None)
    assert ids(tracker) == {9: "id"}
    tracker.rewind({A: 7}, {A: 1}, {A: tracker._owned[A]})
    lineage = tracker._owned[A].lineage
    remove(tracker)
    begin(tracker, Start(7, LOGGED, lineage), None)
    assert ids(tracker) == {7: ""}


def test_a_commit_never_goes_below_the_commit_of_another_member() -> None:
    tracker = back_in_mid_batch(Start(20, COMMITTED), ours(20))
    complete(tracker)
    assert pending(tracker) == {}
    tracker.renew()
    assert pending(tracker) == {A: 20}


def test_a_batch_does_not_overwrite_a_rewind_made_during_the_batch() -> None:
    tracker = back_in_mid_batch(Start(2, COMMITTED, 7), ours(2, 7))
    complete(tracker)
    assert pending(tracker) == {}


def test_a_partition_lost_or_started_elsewhere_while_its_batch_was_planned_keeps_its_state() -> None:
    tracker = owning(7, ours(7))
    tracker.planned(BatchOffset.from_ranges([OffsetRange(*A, 5, 9)]))
    assert tracker._owned[A].position == 7
    tracker.planned(BatchOffset.from_ranges([OffsetRange(*A, 7, 9, epoch=3)]))
    assert (tracker._owned[A].position, tracker._owned[A].epoch) == (9, 3), "the leader's epoch when it was planned"
    remove(tracker)
    tracker.planned(BatchOffset.from_ranges([OffsetRange(*A, 5, 9)]))
    assert A not in tracker._owned


def test_a_batch_of_the_former_topic_does_not_move_a_position_in_its_successor() -> None:
    tracker = owning(7, ours(7))
    tracker._owned[A].topic_id = "present"
    tracker.planned(BatchOffset.from_ranges([OffsetRange(*A, 7, 9, "former")]))
    assert tracker._owned[A].position == 7
    tracker.planned(BatchOffset.from_ranges([OffsetRange(*A, 7, 9, "present")]))
    assert tracker._owned[A].position == 9


def test_a_commit_is_neither_confirmed_nor_rejected_for_a_partition_that_has_started_again_since() -> None:
    tracker = owning(5, None)
    sent = tracker.pending(OWNER)
    remove(tracker)
    begin(tracker, Start(5, COMMITTED), None)
    tracker.confirmed({A: 5}, sent)
    assert pending(tracker) == {A: 5}
    assert not tracker.commits_rejected(sent)


def test_nothing_is_planned_or_committed_for_a_membership_before_the_present_assignment() -> None:
    tracker = owning(5, None)
    before = replace(OWNER, generation=2, owned={A: 2})
    assert (tracker.positions(before), tracker.pending(before)) == ({}, {})


@pytest.mark.parametrize(
    ("found", "again"),
    [(ours(5), {A: 9}), (ours(9), {}), (ours(12), {}), (CommittedOffset(5), {}), (ours(5, 8), {})],
    ids=["moved back", "as committed", "further", "another program", "a later lineage"],
)
def test_a_late_commit_of_ours_is_mended(found: CommittedOffset, again: dict[TopicPartition, int], hand: Hand) -> None:
    tracker = OffsetTracker(hand)
    begin(tracker, Start(9, COMMITTED), ours(9))
    tracker.expect_late_commits({A})
    remove(tracker)
    begin(tracker, Start(9, COMMITTED), ours(9))  # in the same generation: its commits are not fenced
    for later, unsettled in ((599.9, {A}), (0.2, set())):
        hand.now += later
        assert tracker.unsettled(OWNER) == unsettled
    assert tracker.verify({A: found}) == again.keys()
    assert pending(tracker) == again


def test_one_thread_at_a_time_looks_up_the_start_of_a_partition() -> None:
    tracker = OffsetTracker()
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(frozenset({A})) as first, tracker.start_lookup(BOTH) as second:
        assert first.keys() == {A}
        assert second.keys() == {B}
        assert not tracker.unresolved(OWNER)
    assert tracker.unresolved(OWNER) == BOTH, "no thread found a start"


def test_a_start_that_was_looked_up_before_its_partition_was_lost_and_came_back_is_dropped() -> None:
    tracker = OffsetTracker()
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(BOTH) as lookup:
        remove(tracker)
        tracker.partitions_assigned(frozenset({A}), OWNER)
        assert tracker.record_starts(lookup, dict.fromkeys(BOTH, Start(3, COMMITTED)), {}, {}, 0.0).keys() == {B}
    assert tracker.positions(OWNER).keys() == {B}
    assert tracker.unresolved(OWNER) == {A}


def test_nothing_known_of_a_topic_outlives_its_recreation_and_a_start_in_the_new_topic_stays() -> None:
    tracker = OffsetTracker()
    other = PinnedStart("", 5)
    logged = BatchOffset.from_ranges(OffsetRange(*tp, 0, 9, "former", epoch=4) for tp in (A, B, C))
    tracker.restore(logged, PinnedStarts({C: PinnedStart("former", 70), OTHER: other}, frozenset({D})))
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(frozenset({A})) as lookup:
        assert tracker.record_starts(lookup, {A: Start(9, StartRule.LOGGED)}, {}, {"t": "former"}, 0.0)
    with tracker.start_lookup(frozenset({B})) as lookup:
        assert tracker.record_starts(lookup, {B: Start(9, StartRule.COMMITTED)}, {}, {"t": "new"}, 0.0)
    tracker.restart_topics({"t": "new"}, dict.fromkeys(BOTH, Start(0, StartRule.RECREATED)))
    positions = tracker.positions(OWNER)
    assert {tp: (each.position, each.topic_id) for tp, each in positions.items()} == {A: (0, "new"), B: (9, "new")}
    assert positions[B].epoch == UNKNOWN_EPOCH
    assert not tracker.logged(frozenset({A, B, C}), {"t": "new"}).ranges, "C belongs to another member"
    assert tracker.pinned_starts() == PinnedStarts({OTHER: other})


def test_a_start_pinned_in_the_former_topic_does_not_hide_what_is_logged_of_the_new_one() -> None:
    tracker = OffsetTracker()
    logged = OffsetRange(*A, 0, 9, "new")
    tracker.restore(
        BatchOffset.from_ranges([logged]), PinnedStarts({B: PinnedStart("former", 7), C: PinnedStart("", 7)})
    )
    found = tracker.logged(frozenset({A, B, C}), {"t": "new"})
    assert (found.ranges, found.recreated) == ({A: logged}, frozenset({B, C}))
    assert tracker.take_recreated() == {"t"}


def test_no_partition_starts_in_a_topic_that_no_broker_returned_or_that_was_assigned_by_another_id() -> None:
    tracker = OffsetTracker()
    mine, other = UUID(int=1), UUID(int=2)
    tracker.partitions_assigned(BOTH, replace(OWNER, topic_ids={"t": mine}))
    found = [tracker.assigned_in(ids, BOTH) for ids in ({}, {"t": str(other)}, {"t": str(mine)})]
    assert found == [set(), set(), BOTH]


def test_a_new_lineage_is_later_than_all_others_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr("spark_group_source.query.offset_tracker.time.time", lambda: clock[0])
    tracker = OffsetTracker()
    tracker.restore(BatchOffset.from_ranges([OffsetRange(*A, 0, 9, lineage=9_000)]), PinnedStarts())
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(BOTH) as lookup:
        seen = CommittedOffset(3, commit_metadata({"lineage": 9_500}))
        starts = {A: Start(4, StartRule.UNTAGGED, None), B: Start(3, StartRule.COMMITTED, 9_500)}
        assert tracker.record_starts(lookup, starts, {A: CommittedOffset(4), B: seen}, {}, clock[0])
    assert {tp: owned.lineage for tp, owned in tracker.positions(OWNER).items()} == {A: 9_501, B: 9_500}
    clock[0] = 10.0
    found = tracker.positions(OWNER)
    tracker.rewind({B: 1}, {B: 6}, found | {B: replace(found[B], topic_id="of a former topic")})
    assert tracker.positions(OWNER)[B].position == 3
    clock[0] = 10.5
    tracker.rewind({B: 1}, {B: 6}, found)
    assert tracker.positions(OWNER)[B].lineage == 10_500
    assert tracker.positions(OWNER)[B].epoch == 6
    assert {tp: owned.completed for tp, owned in tracker.pending(OWNER).items()} == {A: 4, B: 1}


def test_a_lineage_is_as_old_as_the_lookup_that_found_the_move() -> None:
    tracker = OffsetTracker()
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(BOTH) as lookup:
        tracker.record_starts(lookup, {A: Start(4, UNTAGGED, None)}, {A: CommittedOffset(4)}, {}, 4.5)
    assert tracker.positions(OWNER)[A].lineage == 4_500


def test_a_partition_that_is_lost_in_mid_batch_is_given_up_where_it_started_until_it_is_moved() -> None:
    tracker = OffsetTracker()

    def given_up() -> Mapping[TopicPartition, int]:
        found = tracker.logged(frozenset({A}), {"t": ""})
        assert found.ranges[A].end == 65
        return found.given_up

    begin(tracker, Start(25, UNTAGGED, None), CommittedOffset(25), 7)  # and the commit of our tag fails
    plan(tracker, 65)
    remove(tracker)
    assert given_up() == {A: 25}
    tracker.partitions_assigned(frozenset({A}), OWNER)
    remove(tracker)
    assert given_up() == {A: 25}, "it was lost again before its start was known"
    begin(tracker, Start(0, UNTAGGED, None), CommittedOffset(0), 8)
    remove(tracker)
    assert given_up() == {}, "an operator's next move is a decision"
    begin(tracker, Start(0, UNTAGGED, None), CommittedOffset(0), 9)
    complete(tracker)
    tracker.reserve(frozenset({A}))  # a batch from 0 on, which is not planned yet
    remove(tracker)
    assert given_up() == {}, "an operator may have moved it to 15 since"


def test_a_partition_that_has_started_again_since_it_was_given_up_may_be_moved_back_anywhere() -> None:
    tracker = plan(owning(), 9)
    remove(tracker)
    assert tracker.logged(frozenset({A}), {"t": ""}).given_up == {A: 5}
    complete(tracker)
    begin(tracker, Start(9, LOGGED), ours(5))
    remove(tracker)
    assert tracker.logged(frozenset({A}), {"t": ""}).given_up == {}


def test_a_start_at_latest_stays_where_it_was_if_the_partition_is_lost_before_its_commit() -> None:
    tracker = OffsetTracker()
    tracker.restore(BatchOffset(group="g"), PinnedStarts({A: PinnedStart("")}))
    begin(tracker, Start(7, StartRule.STARTING_OFFSETS, epoch=2), None)
    remove(tracker)
    assert tracker.logged(frozenset({A}), {"t": ""}).pinned.offsets == {A: PinnedStart("", 7, 2)}


def test_a_partition_that_is_lost_before_the_batch_that_reads_it_is_recorded_starts_behind_that_batch() -> None:
    tracker = owning()
    tracker.reserve(frozenset({A}))
    remove(tracker)
    tracker.partitions_assigned(frozenset({A}), OWNER)
    with tracker.start_lookup(frozenset({A})) as lookup:
        tracker.planned(BatchOffset.from_ranges([OffsetRange(*A, 5, 9)]))
        assert not tracker.record_starts(lookup, {A: Start(5, LOGGED)}, {A: ours(5)}, {}, 0.0), "of before the batch"
    found = tracker.logged(frozenset({A}), {"t": ""})
    assert (found.ranges[A].end, found.given_up) == (9, {A: 5})
    assert tracker.unresolved(OWNER) == {A}
