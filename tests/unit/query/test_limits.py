"""How far a batch reads under a limit, as literal tables: the arithmetic of Spark's own source."""

from __future__ import annotations

import pytest

from spark_group_source.offsets import TopicPartition
from spark_group_source.query.limits import admit


def table(*sizes: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): size for number, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("backlog", "limit", "taken"),
    [
        ((101, 11, 1), 10, (8, 1, 1)),
        ((21, 11, 1), 20, (12, 6, 1)),
        ((5, 5, 5, 5), 1, (1, 1, 1, 1)),
        ((5, 0, 7), 100, (5, 0, 7)),
        ((5, 0, 7), 12, (5, 0, 7)),
        ((5, 0, 7), None, (5, 0, 7)),
        ((10**17, 10**17), 10**18 - 1, (10**17, 10**17)),
        ((), 5, ()),
    ],
)
def test_each_partition_gets_a_portion_of_the_limit_by_its_backlog(
    backlog: tuple[int, ...], limit: int | None, taken: tuple[int, ...]
) -> None:
    assert admit(table(*[0] * len(backlog)), table(*backlog), limit) == table(*taken)


def test_a_partition_whose_end_is_unknown_or_before_its_position_does_not_advance() -> None:
    positions = table(50, 50, 50)
    ends = {TopicPartition("t", 0): 60, TopicPartition("t", 1): 5}
    assert admit(positions, ends, None) == table(60, 50, 50)
    assert admit(positions, ends, 4) == table(54, 50, 50)
