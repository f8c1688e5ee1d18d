"""The tracker that two threads share: which thread looks up a start, and what becomes of the result."""

from __future__ import annotations

from spark_group_source.group.membership import Membership
from spark_group_source.group.offsets import CommittedOffset, commit_metadata
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.query.offset_tracker import Start, StartRule
from spark_group_source.query.shared_tracker import PinnedStarts, SharedOffsetTracker

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({A, B})
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})


def test_one_thread_at_a_time_looks_up_the_start_of_a_partition() -> None:
    tracker = SharedOffsetTracker()
    tracker.partitions_assigned(BOTH)
    with tracker.start_lookup(frozenset({A})) as first, tracker.start_lookup(BOTH) as second:
        assert first.partitions == {A}
        assert second.partitions == {B}
        assert not tracker.unresolved(OWNER)
    assert tracker.unresolved(OWNER) == BOTH, "no thread found a start"


def test_a_recreated_topic_is_no_special_case_once_it_has_its_start() -> None:
    tracker = SharedOffsetTracker()
    tracker.partitions_assigned(BOTH)
    tracker.restart_topics({"t": "new"}, BOTH, {})
    with tracker.start_lookup(BOTH) as lookup:
        assert tracker.logged(BOTH, {"t": "new"}).restarted == BOTH
        assert tracker.record_starts(lookup, {A: Start(2, StartRule.RECREATED, None)}, {}, {})
    assert tracker.logged(BOTH, {"t": "new"}).restarted == {B}


def test_a_new_lineage_is_later_than_all_that_the_query_has_seen_whatever_its_clock_says() -> None:
    clock = [5.0]
    tracker = SharedOffsetTracker(wall_clock=lambda: clock[0])
    tracker.restore(BatchOffset.of([OffsetRange(*A, 0, 9, lineage=9_000)]), PinnedStarts())
    tracker.partitions_assigned(BOTH)
    with tracker.start_lookup(BOTH) as lookup:
        seen = CommittedOffset(3, commit_metadata({"lineage": 9_500}))
        starts = {A: Start(4, StartRule.MOVED, None), B: Start(3, StartRule.COMMITTED, 9_500)}
        assert tracker.record_starts(lookup, starts, {A: CommittedOffset(4), B: seen}, {})
    assert {tp: owned.lineage for tp, owned in tracker.positions(OWNER).items()} == {A: 9_501, B: 9_500}
    clock[0] = 10.0
    tracker.rewind({B: 1})
    assert tracker.positions(OWNER)[B].lineage == 10_000
    assert {tp: owned.completed for tp, owned in tracker.pending(OWNER).items()} == {A: 4, B: 1}
