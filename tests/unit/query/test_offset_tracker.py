"""The tracker of offsets: contract sentences 2, 4, 5 and 6, and what two threads make of it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from spark_group_source.group.membership import Membership
from spark_group_source.group.offsets import COMMIT_TAG, CommittedOffset, commit_metadata
from spark_group_source.offsets import UNKNOWN_EPOCH, BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.query.offset_tracker import (
    MAX_REJECTIONS,
    OffsetTracker,
    PinnedStarts,
    Start,
    StartRule,
    resume_at,
)
from tests.unit.hand_clock import Hand

A, B, C, D = (TopicPartition("t", number) for number in range(4))
OTHER = TopicPartition("u", 0)
BOTH = frozenset({A, B})
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})


def ours(offset: int, lineage: int = 0) -> CommittedOffset:
    return CommittedOffset(offset, commit_metadata({"lineage": lineage} if lineage else {}))


def logged(end: int, lineage: int = 0) -> OffsetRange:
    return OffsetRange(*A, 40, end, lineage=lineage)


LOGGED, COMMITTED, MOVED = StartRule.LOGGED, StartRule.COMMITTED, StartRule.MOVED


@pytest.mark.parametrize(
    ("committed", "logged", "start"),
    [
        (None, None, None),
        (None, logged(80, 7), Start(80, LOGGED, 7)),
        (ours(50), None, Start(50, COMMITTED)),
        (ours(50, 7), None, Start(50, COMMITTED, 7)),
        (CommittedOffset(50), None, Start(50, MOVED, None)),
        (ours(50), logged(80), Start(80, LOGGED)),
        (ours(90), logged(80), Start(90, COMMITTED)),
        (ours(50, 7), logged(80, 7), Start(80, LOGGED, 7)),
        (ours(50, 8), logged(80, 7), Start(50, COMMITTED, 8)),
        (ours(90, 6), logged(80, 7), Start(80, LOGGED, 7)),
        (CommittedOffset(90), logged(80), Start(90, MOVED, None)),
        (CommittedOffset(50), logged(80, 7), Start(50, MOVED, None)),
        (CommittedOffset(50, "set by hand"), logged(80), Start(50, MOVED, None)),
        (CommittedOffset(0), logged(80), Start(0, MOVED, None)),
    ],
)
def test_the_later_lineage_applies_and_within_one_the_further_offset(
    committed: CommittedOffset | None, logged: OffsetRange | None, start: Start | None
) -> None:
    assert resume_at(committed, logged) == start


@pytest.mark.parametrize("committed", [CommittedOffset(60), ours(60, 8)], ids=["untagged", "of a later lineage"])
def test_a_decision_before_the_replay_for_an_offset_in_the_batch_is_followed_already(
    committed: CommittedOffset,
) -> None:
    replayed = logged(80, 8)
    start = resume_at(committed, logged(80), replayed=replayed)
    assert start == Start(80, StartRule.REPLAYED, committed.lineage if committed.tagged else None)
    before = CommittedOffset(39, committed.metadata)
    assert resume_at(before, logged(80), replayed=replayed) == resume_at(before, logged(80))
    assert resume_at(ours(60, 9), logged(80), replayed=replayed) == Start(60, COMMITTED, 9), "decided after the replay"


def test_a_consumer_that_reads_on_from_a_partition_given_up_in_mid_batch_moves_nothing_back() -> None:
    assert resume_at(CommittedOffset(60), logged(80), given_up=50) == Start(80, LOGGED)
    assert resume_at(CommittedOffset(40), logged(80), given_up=50) == Start(40, MOVED, None)


@dataclass
class Query:
    """One query of a history. ``killed_in`` is the batch in which it was killed, until its restart replays that."""

    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    killed_in: OffsetRange | None = None
    replayed: OffsetRange | None = None

    def restart(self) -> None:
        checkpoint, self.tracker, self.replayed = BatchOffset(self.tracker._logged), OffsetTracker(), None
        self.tracker.restore(checkpoint, PinnedStarts())

    def resume(self, commit: CommittedOffset | None) -> Start:
        known = self.tracker.logged(frozenset({A}), {"t": ""})
        start = resume_at(commit, known.ranges.get(A), replayed=self.replayed, given_up=known.given_up.get(A))
        return start or Start(0, StartRule.STARTING_OFFSETS)


END = 60


@pytest.mark.parametrize("seed", range(1500))
def test_every_record_from_the_last_rewind_on_is_read_in_random_histories_of_up_to_four_queries(seed: int) -> None:
    """The oracle is the sentence: each record from the offset on that an operator or a callback decides, up to the end,
    is read by somebody after that; without them, nobody goes back behind what he has completed and committed."""
    random_ = random.Random(seed)
    queries = [Query() for _ in range(random_.randint(2, 4))]
    commit: CommittedOffset | None = None
    to_read, clock = set(range(END)), 1
    owner: Query | None = None
    steps = ["assign", "assign", "batch", "batch", "batch", "rewind", "new checkpoint", "lost commit", "replay"]
    for _ in range(random_.randint(10, 90)):
        step = random_.choice(steps)
        if step == "rewind" and owner is None:  # the group has no members: all queries have ended
            at = random_.randrange(END)
            commit, to_read = CommittedOffset(at), set(range(at, END))
            for query in queries:
                query.restart()
        elif step in ("new checkpoint", "replay"):
            query = random_.choice(queries)
            if step == "replay" and query.killed_in is not None:
                clock += 1
                to_read -= set(range(query.killed_in.start, query.killed_in.end))
                query.replayed, query.killed_in = replace(query.killed_in, lineage=clock), None
            elif step == "new checkpoint" and query is not owner and commit is not None:
                queries[queries.index(query)] = Query()
        elif step in ("assign", "lost commit") or owner is None:
            if owner is not None:
                remove(owner.tracker, A)
            owner = random_.choice([None, *(query for query in queries if query.killed_in is None)])
            if owner is not None:
                start = owner.resume(commit)
                clock += 1
                if start.offset and random_.random() < 0.2:
                    start = Start(max(0, start.offset - random_.randint(1, 9)), StartRule.CALLBACK, None)
                    to_read = set(range(start.offset, END))
                begin(owner.tracker, A, start, clock if start.lineage is None else start.lineage, commit)
                owner.replayed = None
                commit = confirm(owner.tracker, commit)
        else:
            owned = owner.tracker._owned[A]
            end = min(END, owned.position + random_.randint(0, 9))
            read = OffsetRange(*A, owned.position, end, lineage=owned.lineage)
            owner.tracker.planned(BatchOffset.of([read]))
            if random_.random() < 0.3:
                owner.restart()
                owner.killed_in, owner = read, None
                continue
            if random_.random() < 0.2:  # lost in mid-batch
                remove(owner.tracker, A)
            complete(owner.tracker)
            to_read -= set(range(read.start, read.end))
            if A not in owner.tracker._owned:
                owner = None
            elif random_.random() < 0.8:  # else the commit is lost
                commit = confirm(owner.tracker, commit)
    for query in queries:
        if query.killed_in is not None:  # its restart reads these
            to_read -= set(range(query.killed_in.start, query.killed_in.end))
    for query in [owner] if owner else queries:
        position = query.tracker._owned[A].position if query is owner else query.resume(commit).offset
        assert to_read <= set(range(position, END)), f"[{min(to_read)}, {position}) is skipped"


def begin(
    tracker: OffsetTracker,
    tp: TopicPartition,
    start: Start,
    lineage: int,
    committed: CommittedOffset | None,
    topic_id: str = "",
) -> None:
    """The partition is assigned, and starts there."""
    tracker.partitions_assigned(frozenset({tp}), OWNER)
    with tracker.start_lookup(frozenset({tp})) as lookup:
        commits = {} if committed is None else {tp: committed}
        tracker.record_starts(lookup, {tp: start._replace(lineage=lineage)}, commits, {tp.topic: topic_id})


def remove(tracker: OffsetTracker, *partitions: TopicPartition) -> None:
    tracker.remove(frozenset(partitions))


def complete(tracker: OffsetTracker) -> None:
    """The batch in flight is completed, if there is one."""
    if (in_flight := tracker.in_flight) is not None:
        assert tracker.completed(in_flight)


def confirm(tracker: OffsetTracker, before: CommittedOffset | None) -> CommittedOffset | None:
    """Commits what is pending; returns what the group has then."""
    pending = tracker.pending(OWNER)
    if A not in pending:
        return before
    owned = pending[A]
    tracker.confirmed({A: owned.completed}, pending)
    return ours(owned.completed, owned.lineage)


@pytest.mark.parametrize("fields", [{}, {"application": "app-1", "generation": 7}])
def test_a_commit_with_fields_after_the_tag_is_no_operators_rewind(fields: dict[str, object]) -> None:
    assert resume_at(CommittedOffset(50, commit_metadata(fields)), logged(80)) == Start(80, LOGGED)
    assert json.loads(commit_metadata(fields).removeprefix(COMMIT_TAG) or "{}") == fields


def owning(**starts: int | tuple[int, CommittedOffset]) -> OffsetTracker:
    """A tracker in which partitions A and B start at offsets, with these commits of the group."""
    tracker = OffsetTracker()
    for name, start in starts.items():
        offset, committed = start if isinstance(start, tuple) else (start, None)
        begin(tracker, {"a": A, "b": B}[name], Start(offset, COMMITTED), 0, committed)
    return tracker


def pending(tracker: OffsetTracker) -> dict[TopicPartition, int]:
    return {tp: owned.completed for tp, owned in tracker.pending(OWNER).items()}


def plan(tracker: OffsetTracker, **ends: int) -> None:
    tps = {"a": A, "b": B}
    tracker.reserve(frozenset(tps[name] for name in ends))
    tracker.planned(
        BatchOffset.of(
            OffsetRange(*tps[name], owned.position, end, lineage=owned.lineage)
            for name, end in ends.items()
            if (owned := tracker._owned.get(tps[name]))
        )
    )


def test_the_start_of_a_partition_without_a_commit_is_committed_at_once() -> None:
    assert pending(owning(a=0, b=(5, ours(5)))) == {A: 0}


def test_the_commit_of_another_program_gets_our_tag_and_a_lineage_at_once() -> None:
    tracker = OffsetTracker()
    begin(tracker, A, Start(5, MOVED, None), 7, CommittedOffset(5))
    assert (pending(tracker), tracker._owned[A].lineage) == ({A: 5}, 7)


def test_a_rejected_commit_stays_pending_but_a_revocation_waits_only_for_a_few_retries() -> None:
    tracker = owning(a=0, b=(5, ours(5)))
    for rejections in range(MAX_REJECTIONS):
        assert tracker.uncommitted() == {A}
        assert tracker.commits_rejected(tracker.pending(OWNER)) == (set() if rejections else {A}), "it is new only once"
    assert (pending(tracker), tracker.uncommitted()) == ({A: 0}, frozenset())
    tracker.confirmed({A: 0}, tracker.pending(OWNER))
    plan(tracker, a=3)
    complete(tracker)
    assert tracker.uncommitted() == {A}


def test_a_rejected_commit_of_a_deleted_partition_is_not_pending_until_brokers_know_the_partition_again() -> None:
    tracker = owning(a=0)
    tracker.note_deleted({A})
    assert pending(tracker) == {A: 0}, "the coordinator has not rejected it"
    tracker.commits_rejected(tracker.pending(OWNER))
    assert not tracker.pending(OWNER)
    tracker.note_deleted(())
    assert pending(tracker) == {A: 0}


def test_a_revoked_partition_is_not_rejected_any_more() -> None:
    tracker = owning(a=0)
    tracker.commits_rejected(tracker.pending(OWNER))
    remove(tracker, A)
    begin(tracker, A, Start(0, COMMITTED), 0, None)
    assert tracker.uncommitted() == {A}


def test_only_a_completed_batch_is_committed_and_then_completely() -> None:
    tracker = owning(a=(5, ours(5)), b=(5, ours(5)))
    plan(tracker, a=9, b=7)
    assert pending(tracker) == {}
    complete(tracker)
    assert pending(tracker) == {A: 9, B: 7}
    tracker.confirmed({A: 9}, tracker.pending(OWNER))
    assert pending(tracker) == {B: 7}


def test_a_failed_commit_is_part_of_the_next_one() -> None:
    tracker = owning(a=(5, ours(5)))
    for end in (9, 12):
        plan(tracker, a=end)
        complete(tracker)
    assert pending(tracker) == {A: 12}


def test_a_partition_no_longer_owned_is_not_committed() -> None:
    tracker = owning(a=(5, ours(5)))
    plan(tracker, a=9)
    remove(tracker, A)
    complete(tracker)
    assert pending(tracker) == {}


def test_an_in_flight_batch_whose_partition_comes_back_is_committed_only_when_completed() -> None:
    tracker = owning(a=(5, ours(5)))
    plan(tracker, a=9)
    remove(tracker, A)
    begin(tracker, A, Start(9, LOGGED), 0, ours(5))
    assert pending(tracker) == {}
    complete(tracker)
    assert pending(tracker) == {A: 9}


def test_the_start_of_a_batch_in_flight_is_committed_if_its_partition_comes_back_without_a_commit() -> None:
    tracker = owning(a=5)
    plan(tracker, a=9)
    remove(tracker, A)
    begin(tracker, A, Start(9, LOGGED), 0, None)
    assert pending(tracker) == {A: 5}


def test_a_commit_never_goes_below_the_commit_of_another_member() -> None:
    tracker = owning(a=(5, ours(5)))
    plan(tracker, a=9)
    remove(tracker, A)
    begin(tracker, A, Start(20, COMMITTED), 0, ours(20))
    complete(tracker)
    assert pending(tracker) == {}


def test_a_batch_does_not_overwrite_a_rewind_made_during_the_batch() -> None:
    tracker = owning(a=(5, ours(5)))
    plan(tracker, a=9)
    remove(tracker, A)
    begin(tracker, A, Start(2, COMMITTED, 7), 7, ours(2, 7))
    complete(tracker)
    assert pending(tracker) == {}


def test_a_batch_of_a_deleted_topic_is_not_committed_to_its_successor() -> None:
    tracker = owning(a=(5, ours(5)))
    tracker._owned[A].topic_id = "former"
    tracker.planned(BatchOffset.of([OffsetRange(*A, 5, 9, "former")]))
    remove(tracker, A)
    begin(tracker, A, Start(20, COMMITTED), 0, ours(20), "new")
    complete(tracker)
    assert tracker._owned[A].completed == 20
    begin(tracker, A, Start(0, COMMITTED), 0, None, "new")
    complete(tracker)
    assert pending(tracker) == {A: 0}


def test_a_partition_lost_while_its_batch_was_planned_has_no_position() -> None:
    tracker = owning(a=(5, ours(5)))
    remove(tracker, A)
    tracker.planned(BatchOffset.of([OffsetRange(*A, 5, 9)]))
    assert A not in tracker._owned


def test_a_partition_that_started_elsewhere_while_its_batch_was_planned_keeps_its_position() -> None:
    tracker = owning(a=(7, ours(7)))
    tracker.planned(BatchOffset.of([OffsetRange(*A, 5, 9)]))
    assert tracker._owned[A].position == 7


def test_a_commit_is_not_confirmed_for_a_partition_that_has_started_again_since() -> None:
    tracker = owning(a=5)
    sent = tracker.pending(OWNER)
    remove(tracker, A)
    begin(tracker, A, Start(5, COMMITTED), 0, None)
    tracker.confirmed({A: 5}, sent)
    assert pending(tracker) == {A: 5}


def test_nothing_is_planned_or_committed_for_a_membership_before_the_present_assignment() -> None:
    tracker = owning(a=5)
    before = replace(OWNER, generation=2, owned={A: 2})
    assert (tracker.positions(before), tracker.pending(before)) == ({}, {})


def test_an_offset_is_committed_again_unchanged() -> None:
    tracker = owning(a=(5, ours(5)), b=(7, ours(7)))
    plan(tracker, b=9)
    tracker.renew()
    assert pending(tracker) == {A: 5, B: 7}
    tracker.confirmed({A: 5, B: 7}, tracker.pending(OWNER))
    assert pending(tracker) == {}


@pytest.mark.parametrize(
    ("found", "again"),
    [(ours(5), {A: 9}), (ours(9), {}), (ours(12), {}), (CommittedOffset(5), {}), (ours(5, 8), {})],
    ids=["moved back", "as committed", "further", "another program", "a later lineage"],
)
def test_a_late_commit_of_ours_that_moved_the_group_back_is_found_and_repaired(
    found: CommittedOffset, again: dict[TopicPartition, int], hand: Hand
) -> None:
    tracker = OffsetTracker(hand)
    begin(tracker, A, Start(9, COMMITTED), 0, ours(9))
    tracker.unanswered({A})
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
        remove(tracker, A)
        tracker.partitions_assigned(frozenset({A}), OWNER)
        assert tracker.record_starts(lookup, dict.fromkeys(BOTH, Start(3, COMMITTED)), {}, {}).keys() == {B}
    assert tracker.positions(OWNER).keys() == {B}
    assert tracker.unresolved(OWNER) == {A}


def test_nothing_known_of_a_topic_outlives_its_recreation_and_a_start_in_the_new_topic_stays() -> None:
    tracker = OffsetTracker()
    other = PinnedStart("", 5)
    logged = BatchOffset.of([OffsetRange(*A, 0, 9, "former"), OffsetRange(*B, 0, 9, "former", epoch=4)])
    tracker.restore(logged, PinnedStarts({C: PinnedStart("former", 70), OTHER: other}, frozenset({D})))
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(frozenset({A})) as lookup:
        assert tracker.record_starts(lookup, {A: Start(9, StartRule.LOGGED)}, {}, {"t": "former"})
    with tracker.start_lookup(frozenset({B})) as lookup:
        assert tracker.record_starts(lookup, {B: Start(9, StartRule.COMMITTED)}, {}, {"t": "new"})
    tracker.restart_topics({"t": "new"}, dict.fromkeys(BOTH, Start(0, StartRule.RECREATED)))
    positions = tracker.positions(OWNER)
    assert {tp: (each.position, each.topic_id) for tp, each in positions.items()} == {A: (0, "new"), B: (9, "new")}
    assert positions[B].epoch == UNKNOWN_EPOCH
    assert not tracker.logged(BOTH, {"t": "new"}).ranges
    assert tracker.pinned_starts() == PinnedStarts({OTHER: other})


def test_a_start_pinned_in_the_former_topic_does_not_hide_what_is_logged_of_the_new_one() -> None:
    tracker = OffsetTracker()
    logged = OffsetRange(*A, 0, 9, "new")
    tracker.restore(BatchOffset.of([logged]), PinnedStarts({B: PinnedStart("former", 7), C: PinnedStart("", 7)}))
    found = tracker.logged(frozenset({A, B, C}), {"t": "new"})
    assert (found.ranges, found.recreated) == ({A: logged}, frozenset({B, C}))
    assert tracker.take_recreated() == {"t"}


def test_no_partition_starts_in_a_topic_that_no_broker_returned_or_that_was_assigned_by_another_id() -> None:
    tracker = OffsetTracker()
    mine, other = UUID(int=1), UUID(int=2)
    tracker.partitions_assigned(BOTH, replace(OWNER, topic_ids={"t": mine}))
    found = [tracker.assigned_in(ids, BOTH) for ids in ({}, {"t": str(other)}, {"t": str(mine)})]
    assert found == [set(), set(), BOTH]


def test_a_new_lineage_is_later_than_all_that_the_query_has_seen_whatever_its_clock_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [5.0]
    monkeypatch.setattr("spark_group_source.query.offset_tracker.time.time", lambda: clock[0])
    tracker = OffsetTracker()
    tracker.restore(BatchOffset.of([OffsetRange(*A, 0, 9, lineage=9_000)]), PinnedStarts())
    tracker.partitions_assigned(BOTH, OWNER)
    with tracker.start_lookup(BOTH) as lookup:
        seen = CommittedOffset(3, commit_metadata({"lineage": 9_500}))
        starts = {A: Start(4, StartRule.MOVED, None), B: Start(3, StartRule.COMMITTED, 9_500)}
        assert tracker.record_starts(lookup, starts, {A: CommittedOffset(4), B: seen}, {})
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


def test_a_partition_that_is_lost_in_mid_batch_is_given_up_where_it_started_if_no_commit_is_known() -> None:
    tracker = OffsetTracker()
    begin(tracker, A, Start(250, MOVED, None), 7, CommittedOffset(250))  # and the commit of our tag fails
    plan(tracker, a=350)
    remove(tracker, A)
    assert tracker.logged(frozenset({A}), {"t": ""}).given_up == {A: 250}


def test_a_partition_that_is_lost_before_the_batch_that_reads_it_is_recorded_starts_behind_that_batch() -> None:
    tracker = owning(a=(5, ours(5)))
    tracker.reserve(frozenset({A}))
    remove(tracker, A)
    tracker.partitions_assigned(frozenset({A}), OWNER)
    with tracker.start_lookup(frozenset({A})) as lookup:
        tracker.planned(BatchOffset.of([OffsetRange(*A, 5, 9)]))
        assert not tracker.record_starts(lookup, {A: Start(5, LOGGED)}, {A: ours(5)}, {}), "of before the batch"
    found = tracker.logged(frozenset({A}), {"t": ""})
    assert (found.ranges[A].end, found.given_up) == (9, {A: 5})
    assert tracker.unresolved(OWNER) == {A}


def test_a_rejection_that_was_sent_for_an_earlier_assignment_does_not_count() -> None:
    tracker = owning(a=0)
    sent = tracker.pending(OWNER)
    remove(tracker, A)
    begin(tracker, A, Start(0, COMMITTED), 0, None)
    assert not tracker.commits_rejected(sent)
