"""Splits the ranges of a micro-batch into tasks: small ranges share a task, large ranges are split on request.

The arithmetic of splitting is that of Spark's own Kafka source, its KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from spark_group_source.offsets import OffsetRange

TaskRanges = list[OffsetRange]


def split_into_tasks(
    ranges: Iterable[OffsetRange], min_records: int, max_records: int | None = None, min_tasks: int | None = None
) -> list[TaskRanges]:
    """Groups ranges into tasks. Every offset is in exactly one task; empty ranges are left out.

    The result depends on the ranges alone, so a replayed batch has the same tasks. No task holds a partition twice.

    Args:
        ranges: at most one range per partition.
        min_records: smaller ranges share a task of at least this many offsets, while enough are left.
        max_records: maximum number of offsets in a task; larger ranges are split into even pieces.
        min_tasks: minimum number of tasks, if there are as many offsets. Even pieces may miss it slightly.
    """
    ordered = sorted(each for each in ranges if each.size)
    limit = max_records or sum(each.size for each in ordered)
    pieces = [piece for each in ordered if each.size > limit for piece in _split(each, -(-each.size // limit))]
    small = [each for each in ordered if each.size <= limit]
    tasks = [[each] for each in pieces] + _pack(small, min_records, limit)
    if min_tasks is None or len(tasks) >= min_tasks:
        return tasks
    return [[piece] for each, count in _piece_counts(pieces + small, min_tasks) for piece in _split(each, count)]


def _pack(ranges: Iterable[OffsetRange], min_records: int, limit: int) -> list[TaskRanges]:
    tasks: list[TaskRanges] = []
    packed: TaskRanges = []
    size = 0
    for offsets in ranges:
        if offsets.size >= min_records:
            tasks.append([offsets])
            continue
        if size >= min_records or (packed and size + offsets.size > limit):
            tasks.append(packed)
            packed, size = [], 0
        packed.append(offsets)
        size += offsets.size
    return [*tasks, packed] if packed else tasks


def _piece_counts(ranges: Sequence[OffsetRange], count: int) -> list[tuple[OffsetRange, int]]:
    """The number of pieces for each range, ``count`` or so in all, in proportion to its offsets.

    Ranges that stay whole are counted first; the larger ranges then divide the remaining pieces.
    """

    def proportion(each: OffsetRange, total: int, pieces: int) -> int:
        # Rounds halves up, as in Java. Python's round() would split two ranges into four where the minimum is five.
        return min(max(int(each.size / total * pieces + 0.5), 1), each.size)

    total = sum(each.size for each in ranges)
    whole = {each for each in ranges if proportion(each, total, count) == 1}
    rest = sum(each.size for each in ranges if each not in whole)
    return [(each, 1 if each in whole else proportion(each, rest, count - len(whole))) for each in ranges]


def _split(offsets: OffsetRange, count: int) -> list[OffsetRange]:
    """Splits a range into ``count`` pieces; later pieces are larger if it does not divide evenly."""
    borders = [offsets.start + offsets.size * number // count for number in range(count + 1)]
    return [replace(offsets, start=begin, end=end) for begin, end in pairwise(borders)]
