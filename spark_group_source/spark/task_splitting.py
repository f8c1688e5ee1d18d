"""Splits the ranges of a micro-batch into tasks: small ranges share a task, large ranges are split on request.

The arithmetic of splitting is that of Spark's own Kafka source, its KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from spark_group_source.offsets import OffsetRange, in_order

TaskRanges = list[OffsetRange]


def split_into_tasks(
    ranges: Iterable[OffsetRange], min_records: int, max_records: int | None = None, min_tasks: int | None = None
) -> list[TaskRanges]:
    """Groups ranges into tasks. Every offset is in exactly one task; empty ranges are left out.

    The result depends on the ranges alone, so a replayed batch has the same tasks. No task holds a partition twice.

    Args:
        ranges: at most one range per partition.
        min_records: smaller ranges share a task of at least this many offsets, as long as enough offsets are left.
        max_records: maximum number of offsets in a task; larger ranges are split into even pieces.
        min_tasks: minimum number of tasks, unless there are fewer offsets. Even pieces may give slightly fewer tasks.
    """
    ordered = in_order([each for each in ranges if each.size])
    limit = max_records
    if limit is None:
        limit = _total(ordered)
    pieces: list[OffsetRange] = []
    small: list[OffsetRange] = []
    for each in ordered:
        if each.size > limit:
            count = -(-each.size // limit)  # rounded up
            pieces += _split(each, count)
        else:
            small.append(each)
    tasks = _one_each(pieces) + _pack(small, min_records, limit)
    if min_tasks is None or len(tasks) >= min_tasks:
        return tasks
    return _one_each(_split_in_proportion(pieces + small, min_tasks))


def _one_each(ranges: Iterable[OffsetRange]) -> list[TaskRanges]:
    return [[each] for each in ranges]


def _total(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.size for each in ranges)


def _pack(ranges: Iterable[OffsetRange], min_records: int, limit: int) -> list[TaskRanges]:
    tasks: list[TaskRanges] = []
    packed: TaskRanges = []
    size = 0
    for offsets in ranges:
        if offsets.size >= min_records:
            tasks.append([offsets])
            continue
        exceeds_limit = size + offsets.size > limit
        if size >= min_records or (packed and exceeds_limit):
            tasks.append(packed)
            packed, size = [], 0
        packed.append(offsets)
        size += offsets.size
    if packed:
        tasks.append(packed)
    return tasks


def _split_in_proportion(ranges: Sequence[OffsetRange], count: int) -> list[OffsetRange]:
    """Splits ranges into about ``count`` pieces in total, each range in proportion to its offsets.

    Ranges that stay whole are counted first; the larger ranges then divide the remaining pieces.
    """
    total = _total(ranges)
    whole = {each for each in ranges if _proportion(each, total, count) == 1}
    remaining_count = count - len(whole)
    remaining_total = total - _total(whole)
    pieces = []
    for each in ranges:
        if each in whole:
            pieces.append(each)
        else:
            pieces += _split(each, _proportion(each, remaining_total, remaining_count))
    return pieces


def _proportion(offsets: OffsetRange, total: int, pieces: int) -> int:
    """How many of the ``pieces`` of ``total`` offsets this range gets: at least one, and no piece is empty."""
    # Rounds halves up, as in Java. Python's round() would split two ranges into four where the minimum is five.
    share = int(offsets.size / total * pieces + 0.5)
    return min(max(share, 1), offsets.size)


def _split(offsets: OffsetRange, count: int) -> list[OffsetRange]:
    """Splits a range into ``count`` pieces; later pieces are larger if it does not divide evenly."""
    borders = [offsets.start + offsets.size * number // count for number in range(count + 1)]
    return [replace(offsets, start=begin, end=end) for begin, end in pairwise(borders)]
