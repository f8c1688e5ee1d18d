"""Ranges to tasks: nothing is dropped, small ranges share a task, large ones are split where asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_group_source.offsets import OffsetRange
from spark_group_source.spark.planning import tasks

SIZES = st.lists(st.integers(min_value=0, max_value=50), max_size=40)
AT_LEAST_1 = st.integers(min_value=1, max_value=60)


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]


def sizes_of(found: list[list[OffsetRange]]) -> list[list[int]]:
    return [[each.size for each in task] for task in found]


def joined(found: list[list[OffsetRange]]) -> list[OffsetRange]:
    """The ranges, with pieces that touch made one again."""
    whole: list[OffsetRange] = []
    for each in sorted(each for task in found for each in task):
        if whole and whole[-1].tp == each.tp:
            assert whole[-1].end == each.start
            whole[-1] = OffsetRange(*each.tp, whole[-1].start, each.end)
        else:
            whole.append(each)
    return whole


def test_small_ranges_share_a_task_and_large_ones_have_their_own() -> None:
    found = tasks(ranges(3, 100, 4, 0, 200, 5), worth_a_task=100)
    assert [[each.partition for each in task] for task in found] == [[1], [4], [0, 2, 5]]


def test_nothing_to_read_is_no_task() -> None:
    assert tasks(ranges(0, 0), 1) == []
    assert tasks(ranges(0, 0), 1, max_records=1, min_tasks=9) == []


@given(SIZES, AT_LEAST_1)
def test_every_offset_is_in_exactly_one_task_and_tasks_are_worth_it(sizes: list[int], worth: int) -> None:
    found = tasks(ranges(*sizes), worth)
    assert sorted(each for task in found for each in task) == [each for each in ranges(*sizes) if each.size]
    assert sum(sum(each.size for each in task) < worth for task in found) <= 1


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([10], 4, [[3], [3], [4]]),
        ([10], 10, [[10]]),
        ([3, 3, 9], 6, [[4], [5], [3, 3]]),
        ([5, 3, 3], 6, [[5], [3, 3]]),
    ],
)
def test_ranges_larger_than_the_most_are_split_evenly(sizes: list[int], most: int, expected: list[list[int]]) -> None:
    assert sizes_of(tasks(ranges(*sizes), 1000, max_records=most)) == expected


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        ([10], 3, [[3], [3], [4]]),
        ([30, 60], 3, [[30], [30], [30]]),
        ([1, 1, 100], 4, [[1], [1], [50], [50]]),
        ([5, 5], 2, [[5], [5]]),
        ([2], 9, [[1], [1]]),
        ([10, 10], 5, [[3], [3], [4], [3], [3], [4]]),  # 2.5 for each, and Java rounds halves up
    ],
)
def test_the_largest_ranges_are_split_for_the_least_number_of_tasks(
    sizes: list[int], least: int, expected: list[list[int]]
) -> None:
    assert sizes_of(tasks(ranges(*sizes), 1000, min_tasks=least)) == expected


def test_small_ranges_stay_together_where_there_are_enough_tasks_anyway() -> None:
    assert sizes_of(tasks(ranges(1, 1, 100, 100), 50, min_tasks=3)) == [[100], [100], [1, 1]]


@given(SIZES, AT_LEAST_1, st.none() | AT_LEAST_1, st.none() | AT_LEAST_1)
def test_no_split_loses_an_offset_or_puts_two_pieces_of_a_partition_into_one_task(
    sizes: list[int], worth: int, most: int | None, least: int | None
) -> None:
    found = tasks(ranges(*sizes), worth, most, least)
    assert joined(found) == [each for each in ranges(*sizes) if each.size]
    assert all(task and all(each.size for each in task) for task in found)
    assert all(len({each.tp for each in task}) == len(task) for task in found)
    assert most is None or all(sum(each.size for each in task) <= most for task in found)
    assert found == tasks(reversed(ranges(*sizes)), worth, most, least)
