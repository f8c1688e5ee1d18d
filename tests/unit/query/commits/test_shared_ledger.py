"""The ledger that two threads share: which thread looks up a start, and what becomes of the result."""

from __future__ import annotations

from spark_group_source.group.membership import Membership
from spark_group_source.offsets import TopicPartition
from spark_group_source.query.commits.shared_ledger import SharedLedger

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({A, B})
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})


def test_one_thread_at_a_time_looks_up_the_start_of_a_partition() -> None:
    ledger = SharedLedger()
    ledger.partitions_assigned(BOTH)
    with ledger.start_lookup(frozenset({A})) as first, ledger.start_lookup(BOTH) as second:
        assert first.partitions == {A}
        assert second.partitions == {B}
        assert not ledger.unresolved(OWNER)
    assert ledger.unresolved(OWNER) == BOTH, "no thread found a start"


def test_a_recreated_topic_is_no_special_case_once_it_has_its_start() -> None:
    ledger = SharedLedger()
    ledger.partitions_assigned(BOTH)
    ledger.restart_topics({"t"}, BOTH, {})
    with ledger.start_lookup(BOTH) as lookup:
        assert ledger.logged_ends(BOTH)[1] == BOTH
        assert ledger.record_starts(lookup, {A: 2}, {}, {})
    assert ledger.logged_ends(BOTH)[1] == {B}
