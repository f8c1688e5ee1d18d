"""Ranges of a micro-batch to tasks: small ranges are packed together, large ones split where asked. Pure.

The arithmetic of splitting is that of Spark's own Kafka source, its KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from spark_group_source.offsets import OffsetRange

Task = list[OffsetRange]


def tasks(
    ranges: Iterable[OffsetRange], worth_a_task: int, max_records: int | None = None, min_tasks: int | None = None
) -> list[Task]:
    """Groups ranges into tasks. Every offset is in exactly one of them; empty ranges are left out.

    The result depends on the ranges alone, so that a replayed batch has the tasks it had. No task holds two ranges of
    one partition.

    Args:
        ranges: at most one of each partition.
        worth_a_task: ranges of fewer offsets share a task, of at least that many while there are that many left.
        max_records: most offsets of a task; larger ranges are split into even pieces.
        min_tasks: least number of tasks, as long as there are that many offsets, as near as even pieces come to it.
    """
    whole = sorted(each for each in ranges if each.size)
    most = max_records or sum(each.size for each in whole)
    pieces = [piece for each in whole if each.size > most for piece in _split(each, -(-each.size // most))]
    small = [each for each in whole if each.size <= most]
    found = [[each] for each in pieces] + _packed(small, worth_a_task, most)
    if min_tasks is None or len(found) >= min_tasks:
        return found
    return [[piece] for each, parts in _parts(pieces + small, min_tasks) for piece in _split(each, parts)]


def _packed(ranges: Iterable[OffsetRange], worth_a_task: int, most: int) -> list[Task]:
    found: list[Task] = []
    small: Task = []
    size = 0
    for each in ranges:
        if each.size >= worth_a_task:
            found.append([each])
            continue
        if size >= worth_a_task or (small and size + each.size > most):
            found.append(small)
            small, size = [], 0
        small.append(each)
        size += each.size
    return [*found, small] if small else found


def _parts(ranges: Sequence[OffsetRange], count: int) -> list[tuple[OffsetRange, int]]:
    """Into how many pieces each range is split for about ``count`` in all: by its share of the offsets.

    What is not split takes none of the pieces of the others, so these are counted out in a second turn.
    """

    def share(each: OffsetRange, total: int, of: int) -> int:
        # Halves go up, as in Java: Python's round() would give two ranges four tasks where five are the least.
        return min(max(int(each.size / total * of + 0.5), 1), each.size)

    total = sum(each.size for each in ranges)
    kept = {each for each in ranges if share(each, total, count) == 1}
    rest = sum(each.size for each in ranges if each not in kept)
    return [(each, 1 if each in kept else share(each, rest, count - len(kept))) for each in ranges]


def _split(each: OffsetRange, parts: int) -> list[OffsetRange]:
    """``parts`` pieces; what does not divide evenly makes the later ones larger."""
    borders = [each.start + each.size * number // parts for number in range(parts + 1)]
    return [replace(each, start=begin, end=end) for begin, end in pairwise(borders)]
