"""Where a read starts and ends, as the options say it, and the parsers of these options. Pure.

The names come from Spark's own Kafka source, which writes -2 for earliest and -1 for latest. Here only the JSON of the
options contains these numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.offsets import MAX_OFFSET, TopicPartition

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
    return parse_numbers_and_others(text, number_of, expected)[0]


def parse_numbers_and_others(
    text: str, number_of: Callable[[Any], int], expected: str, others_of: Callable[[Any], int] | None = None
) -> tuple[dict[TopicPartition, int], int | None]:
    """As :func:`parse_numbers`, and the number of :data:`OTHERS` if the JSON has one, by ``others_of``."""
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


EXAMPLE_OFFSETS = '{"orders":{"0":23,"1":-2}}'
EXAMPLE_ENDS = '{"orders":{"0":23,"1":-1}}'
EXAMPLE_TIMES = '{"orders":{"0":1735689600000,"1":1735689600000}}'

_SECONDS = range(10**9, 10**10)
"""Seconds since 1970 of the years 2001 to 2286. As milliseconds they would be days of the year 1970."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset of each log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end offset of each log; with read_committed the last stable offset."""


@dataclass(frozen=True, slots=True)
class FromCommitted:
    """The group's committed offset. Without one: ``fallback``, or an error if that is ``None``."""

    fallback: Earliest | Latest | None


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition of the subscription, from the JSON of ``option``.

    ``others`` applies to the partitions that ``offsets`` does not name. If it is ``None``, the JSON must name all.
    """

    offsets: Mapping[TopicPartition, int | Earliest | Latest]
    option: str
    others: Earliest | Latest | None = None

    def of(self, tp: TopicPartition) -> int | Earliest | Latest | None:
        """The offset of a partition; ``None`` if the JSON says nothing of it."""
        return self.offsets.get(tp, self.others)

    @property
    def digest(self) -> str:
        """Eight characters, others for other offsets."""
        return hashlib.sha256(as_json(self.offsets, self.others).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time, from ``option``: one time for all partitions, or one for each.

    Times are in milliseconds since 1970. If no record is as late: the end offset if ``or_latest``, otherwise an error.
    """

    timestamps: int | Mapping[TopicPartition, int]
    option: str
    or_latest: bool


OffsetSpec = Earliest | Latest | SpecificOffsets | AtTimestamp
"""Positions that do not depend on the group."""

StartSpec = OffsetSpec | FromCommitted
"""The start of a read."""

EndSpec = Latest | SpecificOffsets | AtTimestamp
"""The end of a batch query."""


def parse_start(text: str) -> Earliest | Latest | FromCommitted | SpecificOffsets:
    """The value of ``startingOffsets``.

    Raises:
        ValueError: the value is invalid; the message completes "It must be".
    """
    words: dict[str, Earliest | Latest | FromCommitted] = {
        "earliest": Earliest(),
        "latest": Latest(),
        "committed": FromCommitted(None),
    }
    expected = (
        "earliest, latest, committed or JSON with an offset for every partition of the subscription, where -2 is"
        f' earliest, -1 is latest and "{OTHERS}" stands for all other partitions, for example {EXAMPLE_OFFSETS}'
    )
    word = words.get(text.strip().lower())
    if word is not None:
        return word
    numbers, others = parse_numbers_and_others(text, _offset, expected, _sentinel)
    return SpecificOffsets(_offsets(numbers), "startingOffsets", None if others is None else _SENTINELS[others])


def parse_fallback(text: str) -> FromCommitted:
    """The value of ``startingOffsetsFallback``.

    Raises:
        ValueError: the value is invalid; the message completes "It must be".
    """
    fallbacks = {"earliest": FromCommitted(Earliest()), "latest": FromCommitted(Latest()), "fail": FromCommitted(None)}
    try:
        return fallbacks[text.strip().lower()]
    except KeyError:
        raise ValueError("earliest, latest or fail") from None


def parse_end(text: str) -> Latest | SpecificOffsets:
    """The value of ``endingOffsets``.

    Raises:
        ValueError: the value is invalid; the message completes "It must be".
    """
    if text.strip().lower() == "latest":
        return Latest()
    expected = (
        "latest or JSON with an offset for every partition of the subscription, where -1 is latest, for example"
        f" {EXAMPLE_ENDS}"
    )
    return SpecificOffsets(_offsets(parse_numbers(text, _offset, expected)), "endingOffsets")


def parse_timestamp_strategy(text: str) -> bool:
    """The value of ``startingOffsetsByTimestampStrategy``: whether it is ``latest``.

    Raises:
        ValueError: the value is invalid; the message completes "It must be".
    """
    if text.strip().lower() not in ("error", "latest"):
        raise ValueError("error or latest")
    return text.strip().lower() == "latest"


def timestamp_parser(option: str, or_latest: bool = False) -> Callable[[str], AtTimestamp]:
    """The parser of an option with one time for all partitions; it raises as :func:`parse_start` does."""
    expected = "a whole number of milliseconds since 1970, for example 1735689600000"

    def parse(text: str) -> AtTimestamp:
        if not re.fullmatch(r"\+?\d{1,19}", text.strip()) or int(text) > MAX_OFFSET:
            raise ValueError(expected)
        try:
            return AtTimestamp(_time(int(text)), option, or_latest)
        except ValueError as error:
            raise ValueError(f"{expected} ({error})") from None

    return parse


def timestamps_parser(option: str, or_latest: bool = False) -> Callable[[str], AtTimestamp]:
    """The parser of an option with a time for each partition, as JSON; it raises as :func:`parse_start` does."""
    expected = f"JSON with milliseconds since 1970 for every partition of the subscription, for example {EXAMPLE_TIMES}"
    return lambda text: AtTimestamp(parse_numbers(text, _time, expected), option, or_latest)


def check_start(given: StartSpec | None, fallback: FromCommitted | None, time: AtTimestamp | None, reset: bool) -> None:
    """Checks the options that depend on ``startingOffsets`` (``given``).

    Args:
        fallback: ``startingOffsetsFallback``, if set.
        time: the start time, if set.
        reset: ``resetOffsetsOnStart``.

    Raises:
        OptionError: one of them contradicts ``given``.
    """
    if not isinstance(given, FromCommitted):
        if fallback is not None:
            raise OptionError(
                "Option 'startingOffsetsFallback' is set, and 'startingOffsets' is not committed.",
                "Remove it, because a stream starts partitions without a committed offset at 'startingOffsets'. Or set"
                " 'startingOffsets' to committed.",
            )
        return
    if time is not None:
        raise OptionError(
            f"Option '{time.option}' is set, and 'startingOffsets' is committed.",
            "Remove one of them. In a stream committed offsets always take precedence.",
        )
    if reset:
        raise OptionError(
            "Option 'resetOffsetsOnStart' is true, and 'startingOffsets' is committed.",
            "Set 'startingOffsets' to the new start: earliest, latest or JSON offsets.",
        )


def as_json(values: Mapping[TopicPartition, int | Earliest | Latest], others: Earliest | Latest | None = None) -> str:
    """The JSON of these values as the options accept it, in one line; partitions sorted by number."""
    by_topic: dict[str, dict[str, int]] = {}
    for tp, value in sorted(values.items(), key=lambda item: item[0]):
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = number_in_json(value)
    rest = {} if others is None else {OTHERS: number_in_json(others)}
    return json.dumps(by_topic | rest, separators=(",", ":"), ensure_ascii=False)


def number_in_json(value: int | Earliest | Latest) -> int:
    """The number that the JSON of the options has for this value."""
    return value if isinstance(value, int) else -2 if isinstance(value, Earliest) else -1


_SENTINELS: dict[int, Earliest | Latest] = {-2: Earliest(), -1: Latest()}


def _offsets(numbers: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | Earliest | Latest]:
    return {tp: _SENTINELS.get(number, number) for tp, number in numbers.items()}


def _sentinel(value: Any) -> int:
    if type(value) is not int or value not in _SENTINELS:
        raise ValueError(f'"{OTHERS}" stands for all other partitions, and must be -2 or -1')
    return value


def _offset(value: Any) -> int:
    return _number(value, -2)


def _time(value: Any) -> int:
    number = _number(value, 0)
    if number in _SECONDS:
        raise ValueError(f"{number} is in seconds: write {number * 1000}")
    return number


def _number(value: Any, minimum: int) -> int:
    # JSON's true is an int in Python.
    if type(value) is not int or not minimum <= value <= MAX_OFFSET:
        shown = "a JSON object" if isinstance(value, tuple) else json.dumps(value)
        raise ValueError(f"{shown} is not a whole number of at least {minimum}")
    return value
