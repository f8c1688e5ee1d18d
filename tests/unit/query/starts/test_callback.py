"""The user's function that may move start positions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition
from spark_group_source.query.starts.callback import starting_offsets_callback

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


seen: list[Any] = []


def rewind_all(old: dict[str, dict[int, int]], new: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    seen.append((old, new))
    return {topic: dict.fromkeys(partitions, 0) for topic, partitions in new.items()}


def test_the_callback_gets_logged_ends_and_start_positions_and_its_result_applies() -> None:
    seen.clear()
    assert starting_offsets_callback(f"{__name__}:rewind_all")({A: 5}, {A: 7, B: 9}) == {A: 0, B: 0}
    assert starting_offsets_callback(None)({}, {A: 7}) == {}
    assert seen == [({"t": {0: 5}}, {"t": {0: 7, 1: 9}})]


ANSWERS: list[Any] = []


def answer(old: object, new: object) -> Any:
    return ANSWERS.pop()()


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda: 1 / 0, "ZeroDivisionError('division by zero')"),
        (lambda: {"other": {0: 3}}, "returned offset 3 for other-0"),
        (lambda: {"t": {0: -1}}, "returned offset -1 for t-0"),
        (lambda: {"t": {0: 2**63}}, "returned offset 9223372036854775808 for t-0"),
    ],
)
def test_a_callback_that_fails_or_returns_nonsense_is_an_error_that_names_it(returned: Any, says: str) -> None:
    ANSWERS.append(returned)
    with pytest.raises(OptionError, match=f"{__name__}:answer.*" + re.escape(says)):
        starting_offsets_callback(f"{__name__}:answer")({}, {A: 7})
