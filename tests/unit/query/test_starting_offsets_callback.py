"""The user's function that may move start positions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition
from spark_group_source.query.starts import starting_offsets_callback

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
seen: list[Any] = []


def rewind_all(old: dict[str, dict[int, int]], new: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    seen.append((old, new))
    return {topic: dict.fromkeys(partitions, 0) for topic, partitions in new.items()}


def only_look(old: object, new: object) -> None:
    seen.append((old, new))


def fail(old: object, new: object) -> None:
    raise RuntimeError("not today")


def answer_for_others(old: object, new: object) -> dict[str, dict[int, int]]:
    return {"other": {0: 3}}


def answer_below_zero(old: object, new: object) -> dict[str, dict[int, int]]:
    return {"t": {0: -1}}


def test_the_callback_gets_logged_ends_and_start_positions_and_its_result_applies() -> None:
    seen.clear()
    assert starting_offsets_callback(f"{__name__}:rewind_all")({A: 5}, {A: 7, B: 9}) == {A: 0, B: 0}
    assert seen == [({"t": {0: 5}}, {"t": {0: 7, 1: 9}})]


def test_a_callback_that_returns_none_changes_nothing() -> None:
    assert starting_offsets_callback(f"{__name__}:only_look")({}, {A: 7}) == {}
    assert starting_offsets_callback(None)({}, {A: 7}) == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fail", "RuntimeError('not today')"),
        ("answer_for_others", "returned offset 3 for other-0"),
        ("answer_below_zero", "returned offset -1 for t-0"),
    ],
)
def test_a_callback_that_fails_or_returns_nonsense_is_an_error_that_names_it(name: str, says: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*" + re.escape(says)):
        starting_offsets_callback(f"{__name__}:{name}")({}, {A: 7})
