"""The tracker that two threads share: which thread looks up a start, and what becomes of the result."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from spark_group_source.group.membership import Membership
from spark_group_source.group.offsets import CommittedOffset, commit_metadata
from spark_group_source.offsets import UNKNOWN_EPOCH, BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.query.offset_tracker import Start, StartRule
from spark_group_source.query.shared_tracker import PinnedStarts, SharedOffsetTracker

A, B, C, D = (TopicPartition("t", number) for number in range(4))
OTHER = TopicPartition("u", 0)
BOTH = frozenset({A, B})
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})


def test_one_thread_at_a_time_looks_up_the_start_of_a_partition() -> None:
    tracker = SharedOffsetTracker()
    tracker.partitions_assigned(BOTH, {})
    with tracker.start_lookup(frozenset({A})) as first, tracker.start_lookup(BOTH) as second:
        assert first.partitions == {A}
        assert second.partitions == {B}
        assert not tracker.unresolved(OWNER)
    assert tracker.unresolved(OWNER) == BOTH, "no thread found a start"


def test_nothing_known_of_a_topic_outlives_its_recreation_and_a_start_in_the_new_topic_stays() -> None:
    tracker = SharedOffsetTracker()
    other = PinnedStart("", 5)
    logged = BatchOffset.of([OffsetRange(*A, 0, 9, "former"), OffsetRange(*B, 0, 9, "former", epoch=4)])
    tracker.restore(logged, PinnedStarts({C: PinnedStart("former", 70), OTHER: other}, frozenset({D})))
    tracker.partitions_assigned(BOTH, {})
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
    tracker = SharedOffsetTracker()
    logged = OffsetRange(*A, 0, 9, "new")
    tracker.restore(BatchOffset.of([logged]), PinnedStarts({B: PinnedStart("former", 7), C: PinnedStart("", 7)}))
    found = tracker.logged(frozenset({A, B, C}), {"t": "new"})
    assert (found.ranges, found.recreated) == ({A: logged}, frozenset({B, C}))
    assert tracker.take_recreated() == {"t"}


def test_no_partition_starts_in_a_topic_that_no_broker_returned_or_that_was_assigned_by_another_id() -> None:
    tracker = SharedOffsetTracker()
    mine, other = UUID(int=1), UUID(int=2)
    tracker.partitions_assigned(BOTH, {"t": mine})
    found = [tracker.assigned_in(ids, BOTH) for ids in ({}, {"t": str(other)}, {"t": str(mine)})]
    assert found == [set(), set(), BOTH]


def test_a_new_lineage_is_later_than_all_that_the_query_has_seen_whatever_its_clock_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [5.0]
    monkeypatch.setattr("spark_group_source.query.shared_tracker.time.time", lambda: clock[0])
    tracker = SharedOffsetTracker()
    tracker.restore(BatchOffset.of([OffsetRange(*A, 0, 9, lineage=9_000)]), PinnedStarts())
    tracker.partitions_assigned(BOTH, {})
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
