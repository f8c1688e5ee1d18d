"""Ranges to tasks: nothing is dropped, small ranges share a task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_group_source.offsets import OffsetRange
from spark_group_source.planning import pack


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange("t", number, 10, 10 + size) for number, size in enumerate(sizes)]


def test_small_ranges_share_a_task_and_large_ones_have_their_own() -> None:
    tasks = pack(ranges(3, 100, 4, 0, 200, 5), worth_a_task=100)
    assert [[each.partition for each in task] for task in tasks] == [[1], [4], [0, 2, 5]]


def test_nothing_to_read_is_no_task() -> None:
    assert pack(ranges(0, 0)) == []


@given(st.lists(st.integers(min_value=0, max_value=50), max_size=40), st.integers(min_value=1, max_value=60))
def test_every_offset_is_in_exactly_one_task_and_tasks_are_worth_it(sizes: list[int], worth: int) -> None:
    tasks = pack(ranges(*sizes), worth)
    assert sorted(each for task in tasks for each in task) == [each for each in ranges(*sizes) if each.size]
    assert sum(sum(each.size for each in task) < worth for task in tasks) <= 1
