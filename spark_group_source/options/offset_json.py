"""JSON with a number for each partition, in the options for starts and ends. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.json_text import parse_json
from spark_group_source.offsets import TopicPartition, topics_of
from spark_group_source.options.values import MAX_INT32
from spark_group_source.text import printable, quoted

OTHERS = "*"
"""Stands in the JSON for all partitions that the JSON does not name. No topic can have this name."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers in the JSON of an option: by partition, by topic for all its partitions, and of :data:`OTHERS`."""

    partitions: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = field(default_factory=dict)
    others: int | None = None


NumberOf = Callable[[Any], int]
"""Turns a value of the JSON into a number, or raises ``ValueError``."""


def parse_numbers(text: str, number_of: NumberOf, expected: str, whole_of: NumberOf | None = None) -> Numbers:
    """The numbers in JSON such as ``{"orders": {"0": 23}, "customers": "earliest", "*": -2}``.

    Args:
        number_of: for the value of a partition.
        expected: the text of each error; the problem follows in parentheses.
        whole_of: for the value of a topic, or of :data:`OTHERS`; ``None`` if only partitions have numbers.

    Raises:
        ValueError: the text is not such JSON.
    """
    if not text.lstrip().startswith(("{", "[")):
        raise ValueError(expected)  # a mistyped word, not JSON
    try:
        numbers = _numbers(_topics(parse_json(text, pairs=True)), number_of, whole_of)
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from None
    return numbers


def _numbers(pairs: tuple[tuple[str, Any], ...], number_of: NumberOf, whole_of: NumberOf | None) -> Numbers:
    partitions: dict[TopicPartition, int] = {}
    topics: dict[str, int] = {}
    for topic, values in pairs:
        if whole_of is not None and _is_whole(topic, values):
            if topic in topics:
                raise ValueError(f"the JSON names {_quoted_in_json(topic)} twice")
            topics[topic] = _whole(topic, values, whole_of)
        else:
            _add_partitions(partitions, topic, values, number_of)
    others = topics.pop(OTHERS, None)
    if others is not None and not (partitions or topics):
        raise ValueError(f'the JSON has only "{OTHERS}": write earliest or latest instead of JSON')
    _check_topics(topics, partitions)
    return Numbers(partitions, topics, others)


def _is_whole(topic: str, values: Any) -> bool:
    """Whether the JSON has one value for all partitions of a topic, or for :data:`OTHERS`."""
    if topic == OTHERS:
        return True
    return not isinstance(values, tuple)


def _whole(topic: str, value: Any, whole_of: NumberOf) -> int:
    """The number that stands for all partitions of a topic, or for :data:`OTHERS`."""
    try:
        return whole_of(value)
    except ValueError:
        if topic == OTHERS:
            raise ValueError(f'"{OTHERS}" stands for all other partitions: give it earliest or latest') from None
        raise ValueError(
            f"{_quoted_in_json(topic)} must have an offset for each of its partitions, or earliest or latest"
        ) from None


def _add_partitions(partitions: dict[TopicPartition, int], topic: str, values: Any, number_of: NumberOf) -> None:
    for key, value in _partitions(topic, values):
        tp = TopicPartition(topic, _partition(key))
        if tp in partitions:
            raise ValueError(f"the JSON names {tp} twice")
        partitions[tp] = number_of(value)


def _check_topics(topics: Collection[str], partitions: Collection[TopicPartition]) -> None:
    in_both = sorted(set(topics) & topics_of(partitions))
    if in_both:
        raise ValueError(f"the JSON has values for {_quoted_in_json(in_both[0])} as a whole and for its partitions")
    if not (partitions or topics):
        raise ValueError("the JSON names no partition")


def _quoted_in_json(text: str) -> str:
    """A text in JSON's quotes, cut to a readable length."""
    return printable(json.dumps(text, ensure_ascii=False))


def _topics(value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, tuple):
        raise ValueError("a JSON array names no topics")
    return value


def _partitions(topic: str, value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, tuple):
        raise ValueError(f"{_quoted_in_json(topic)} must have a value for each partition")
    return value


def _partition(text: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text) or int(text) > MAX_INT32:
        raise ValueError(f"{quoted(text)} is not a partition number")
    return int(text)
