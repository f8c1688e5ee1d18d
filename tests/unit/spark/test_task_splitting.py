"""Splitting ranges into tasks: no offset is dropped, small ranges share a task, large ranges are split on request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_group_source.offsets import OffsetRange
from spark_group_source.spark.task_splitting import split_into_tasks

SIZES = st.lists(st.integers(min_value=0, max_value=50), max_size=40)
AT_LEAST_1 = st.integers(min_value=1, max_value=60)


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]


def joined(tasks: list[list[OffsetRange]]) -> list[OffsetRange]:
    """The ranges, with adjacent pieces joined again."""
    whole: list[OffsetRange] = []
    for piece in sorted(each for task in tasks for each in task):
        if whole and whole[-1].tp == piece.tp:
            assert whole[-1].end == piece.start
            whole[-1] = OffsetRange(*piece.tp, whole[-1].start, piece.end)
        else:
            whole.append(piece)
    return whole


def test_small_ranges_share_a_task_and_large_ranges_get_their_own() -> None:
    tasks = split_into_tasks(ranges(3, 100, 4, 0, 200, 5), min_records=100)
    assert [[each.partition for each in task] for task in tasks] == [[1], [4], [0, 2, 5]]
    assert split_into_tasks(ranges(0, 0), 1) == [], "empty ranges get no task"
    assert split_into_tasks(ranges(0, 0), 1, max_records=1, min_tasks=9) == []


def test_ranges_larger_than_the_maximum_are_split_evenly() -> None:
    for sizes, max_records, expected in (
        ([10], 4, [[3], [3], [4]]),
        ([10], 10, [[10]]),
        ([3, 3, 9], 6, [[4], [5], [3, 3]]),
    ):
        tasks = split_into_tasks(ranges(*sizes), 1000, max_records=max_records)
        assert [[each.size for each in task] for task in tasks] == expected


def test_the_largest_ranges_are_split_to_reach_the_minimum_number_of_tasks() -> None:
    for sizes, minimum, min_tasks, expected in (
        ([10], 1000, 3, [[3], [3], [4]]),
        ([30, 60], 1000, 3, [[30], [30], [30]]),
        ([1, 1, 100], 1000, 4, [[1], [1], [50], [50]]),
        ([2], 1000, 9, [[1], [1]]),
        ([10, 10], 1000, 5, [[3], [3], [4], [3], [3], [4]]),  # 2.5 pieces each, and Java rounds halves up
        ([1, 1, 100, 100], 50, 3, [[100], [100], [1, 1]]),  # small ranges stay together if there are enough tasks
    ):
        tasks = split_into_tasks(ranges(*sizes), minimum, min_tasks=min_tasks)
        assert [[each.size for each in task] for task in tasks] == expected


@given(SIZES, AT_LEAST_1, st.none() | AT_LEAST_1, st.none() | AT_LEAST_1)
def test_splitting_keeps_every_offset_and_puts_pieces_of_a_partition_into_different_tasks(
    sizes: list[int], minimum: int, max_records: int | None, min_tasks: int | None
) -> None:
    tasks = split_into_tasks(ranges(*sizes), minimum, max_records, min_tasks)
    assert joined(tasks) == [each for each in ranges(*sizes) if each.size]
    assert all(task and all(each.size for each in task) for task in tasks)
    assert all(len({each.tp for each in task}) == len(task) for task in tasks)
    assert max_records is None or all(sum(each.size for each in task) <= max_records for task in tasks)
    assert tasks == split_into_tasks(reversed(ranges(*sizes)), minimum, max_records, min_tasks)
    if max_records is min_tasks is None:
        assert sum(sum(each.size for each in task) < minimum for task in tasks) <= 1
