"""The judge of groups with several clients sees each fault that a client may have."""

from __future__ import annotations

from spark_group_source.offsets import TopicPartition
from tests.clients.division import divided, swapped
from tests.clients.judge import Reading, Verdict, judge
from tests.integration.commit_log import Commit


def read(member: str, offset: int, at_ms: int = 0) -> Reading:
    return Reading(member, ("t", 0, offset), at_ms)


def commit(offset: int, at_ms: int = 1_000) -> Commit:
    return Commit("t", 0, offset, at_ms, False)


def written(count: int) -> set[tuple[str, int, int]]:
    return {("t", 0, offset) for offset in range(count)}


def test_a_group_that_reads_each_record_once_and_commits_behind_it_has_no_fault() -> None:
    verdict = judge(written(2), [read("a", 0), read("b", 1)], (), [commit(0), commit(1), commit(1), commit(2)])
    assert verdict == Verdict(2, (), 0, (), (), ())


def test_an_unread_record_is_found() -> None:
    assert judge(written(2), [read("a", 1)], (), []).unread == (("t", 0, 0),)


def test_a_repeated_record_is_a_fault_unless_a_member_that_had_it_was_killed() -> None:
    readings = [read("a", 0), read("b", 0), read("a", 1), read("c", 1), read("d", 1)]
    verdict = judge(written(2), readings, {"c"}, [])
    assert verdict.repeated == (("t", 0, 0),)
    assert verdict.repeated_after_kills == 2


def test_a_record_that_one_member_reads_twice_is_repeated() -> None:
    assert judge(written(1), [read("a", 0), read("a", 0)], (), []).repeated == (("t", 0, 0),)


def test_a_commit_that_goes_back_is_found_in_its_own_partition_only() -> None:
    other = Commit("t", 1, 0, 0, False)
    assert judge((), [read("a", 0), read("a", 1)], (), [commit(2), other, commit(1)]).back == ((commit(2), commit(1)),)


def test_a_commit_ahead_of_reading_is_found_also_if_a_record_before_it_is_read_later() -> None:
    readings = [read("a", 0, at_ms=500), read("a", 1, at_ms=2_000), read("a", 2, at_ms=600)]
    early, right, never = commit(3, 1_000), commit(3, 2_000), commit(9, 9_000)
    assert judge(written(3), readings, (), [commit(1), early, right, never]).ahead == (early, never)


def share(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def test_range_is_blocks_of_each_topic_and_roundrobin_deals_all() -> None:
    blocks = [share(3, 4), share(0, 1, 2)]
    dealt = [share(0, 2, 4), share(1, 3)]
    assert divided("range", blocks, {"t": 5})
    assert not divided("range", dealt, {"t": 5})
    assert divided("roundrobin", dealt, {"t": 5})
    assert not divided("roundrobin", blocks, {"t": 5})
    assert divided("range", [share(0, 1) | share(0, topic="u"), share(2)], {"t": 3, "u": 1})
    assert divided("roundrobin", [share(0, 2), share(1) | share(0, topic="u")], {"t": 3, "u": 1})


def test_sticky_assignors_divide_evenly_and_nobody_may_have_what_another_has_or_miss_one() -> None:
    for assignor in ("sticky", "cooperative-sticky", "uniform"):
        assert divided(assignor, [share(0, 3), share(1, 2)], {"t": 4})
        assert not divided(assignor, [share(0, 1, 2), share(3)], {"t": 4})
        assert not divided(assignor, [share(0, 1), share(1, 2)], {"t": 4})
        assert not divided(assignor, [share(0, 1), share(2)], {"t": 4})
        assert not divided(assignor, [share(0, 1), share(2, 3, 4)], {"t": 4})


def test_a_member_that_gives_up_and_gets_partitions_at_once_has_swapped_them() -> None:
    assert swapped(share(0, 1), share(1, 2))
    assert not swapped(share(0, 1), share(1))
    assert not swapped(share(), share(1, 2))
