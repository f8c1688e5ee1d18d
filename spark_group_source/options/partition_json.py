"""The JSON of options with a number for each partition: ``{"topic":{"0":23}}``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from spark_group_source.offsets import TopicPartition

OTHERS = "*"
"""The name that stands for all partitions that the JSON does not name. No topic can have it."""


def parse_numbers(text: str, number_of: Callable[[Any], int], expected: str) -> dict[TopicPartition, int]:
    """The number of each partition.

    Args:
        number_of: turns a value of the JSON into a number, or raises ``ValueError``.
        expected: the text of each error; the problem follows in parentheses.

    Raises:
        ValueError: the text is not such JSON.
    """
    numbers, _ = _parse(text, number_of, expected, None)
    return numbers


def parse_numbers_and_others(
    text: str, number_of: Callable[[Any], int], expected: str, others_of: Callable[[Any], int]
) -> tuple[dict[TopicPartition, int], int | None]:
    """As :func:`parse_numbers`, and the number of :data:`OTHERS` if the JSON has one, by ``others_of``."""
    return _parse(text, number_of, expected, others_of)


def _parse(
    text: str, number_of: Callable[[Any], int], expected: str, others_of: Callable[[Any], int] | None
) -> tuple[dict[TopicPartition, int], int | None]:
    numbers: dict[TopicPartition, int] = {}
    others = None
    if not text.lstrip().startswith(("{", "[")):
        raise ValueError(expected)  # a mistyped word, not JSON
    try:
        # Pairs keep both of two equal names; a dictionary would silently drop the first.
        for topic, values in _pairs(json.loads(text, object_pairs_hook=tuple)):
            if topic == OTHERS and others_of is not None:
                if others is not None:
                    raise ValueError(f'the JSON names "{OTHERS}" twice')
                others = others_of(values)
                continue
            for key, value in _pairs(values):
                tp = TopicPartition(topic, _partition(key))
                if tp in numbers:
                    raise ValueError(f"the JSON names {tp} twice")
                numbers[tp] = number_of(value)
        if not numbers:
            raise ValueError("the JSON names no partition")
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from None
    return numbers, others


def _pairs(value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, tuple):
        raise ValueError("a topic has no partitions")
    return value


def _partition(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{text!r} is not a partition number")
    return int(text)
