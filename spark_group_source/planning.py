"""Ranges of a micro-batch to tasks: small ranges are packed together, none is dropped. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from spark_group_source.offsets import OffsetRange

RECORDS_WORTH_A_TASK = 20_000
"""Fewer records than this are read faster in a task with others than in one of their own: a Python task costs
40-80 ms whatever it reads, which is the time to read some ten thousands of records."""


def pack(ranges: Iterable[OffsetRange], worth_a_task: int = RECORDS_WORTH_A_TASK) -> list[list[OffsetRange]]:
    """Groups ranges into tasks, each of at least ``worth_a_task`` offsets while there are that many left.

    A range is never split or dropped; empty ranges are left out. The result depends on the ranges alone, so
    that a replayed batch has the tasks it had.
    """
    tasks: list[list[OffsetRange]] = []
    small: list[OffsetRange] = []
    for each in sorted(each for each in ranges if each.size):
        if each.size >= worth_a_task:
            tasks.append([each])
            continue
        small.append(each)
        if sum(one.size for one in small) >= worth_a_task:
            tasks.append(small)
            small = []
    if small:
        tasks.append(small)
    return tasks
