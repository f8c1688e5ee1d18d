"""The parsers of the options for starts and ends: words, JSON of offsets, and times. Pure.

Each raises ``ValueError`` for an invalid value; the message is the rest of a sentence that begins with "It must be".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from spark_group_source.errors import CheckpointError
from spark_group_source.json_text import parse_json
from spark_group_source.offsets import MAX_OFFSET, BatchOffset
from spark_group_source.options.offset_json import OTHERS, parse_numbers
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    FromCommitted,
    Latest,
    SpecificOffsets,
    as_json,
)
from spark_group_source.options.values import word
from spark_group_source.text import printable

EXAMPLE_OFFSETS = '{"orders":{"0":23,"1":-2}}'
EXAMPLE_TOPICS = '{"orders":"earliest"}'
EXAMPLE_ENDS = '{"orders":{"0":23,"1":-1}}'
EXAMPLE_TIMES = '{"orders":{"0":1735689600000,"1":1735689600000}}'


_SENTINELS: dict[int, Earliest | Latest] = {-2: Earliest(), -1: Latest()}


_WORDS = {"earliest": -2, "latest": -1}


_SECONDS = range(10**9, 10**10)
"""Seconds since 1970 of the years 2001 to 2286. As milliseconds they would be days of the year 1970."""


_FINER = ((range(10**15, 10**16), "microseconds", 10**3), (range(10**18, MAX_OFFSET), "nanoseconds", 10**6))
"""Micro- and nanoseconds since 1970 of the years from 2001 on, and how many a millisecond has. As milliseconds they
would be years after 33,000: a read that ends there would have no end, and one that starts there no record."""


def parse_start(text: str) -> Earliest | Latest | FromCommitted | SpecificOffsets:
    """The value of ``startingOffsets``.

    Raises:
        ValueError: the value is invalid; the message is the rest of a sentence that begins with "It must be".
    """
    words: dict[str, Earliest | Latest | FromCommitted] = {
        "earliest": Earliest(),
        "latest": Latest(),
        "committed": FromCommitted(None),
    }
    expected = (
        "earliest, latest, committed or JSON with an offset for every partition of the subscription, where -2 is"
        f' earliest, -1 is latest and "{OTHERS}" stands for all other partitions, for example {EXAMPLE_OFFSETS} or'
        f" {EXAMPLE_TOPICS}"
    )
    start = words.get(text.strip().lower())
    if start is not None:
        return start
    return _specific(text, "startingOffsets", expected)


def parse_fallback(text: str) -> FromCommitted:
    """The value of ``startingOffsetsFallback``.

    Raises:
        ValueError: the value is invalid; the message is the rest of a sentence that begins with "It must be".
    """
    fallbacks = {"earliest": FromCommitted(Earliest()), "latest": FromCommitted(Latest()), "fail": FromCommitted(None)}
    return fallbacks[word(text, *fallbacks)]


def parse_end(text: str) -> Latest | SpecificOffsets:
    """The value of ``endingOffsets``.

    Raises:
        ValueError: the value is invalid; the message is the rest of a sentence that begins with "It must be".
    """
    if text.strip().lower() == "latest":
        return Latest()
    expected = (
        "latest or JSON with an offset for every partition of the subscription, where -1 is latest, for example"
        f' {EXAMPLE_ENDS} or {{"orders":"latest"}}'
    )
    spec = _specific(text, "endingOffsets", expected)
    if spec.others is not None:
        raise ValueError(f'{expected} (only startingOffsets may have "{OTHERS}")')
    return spec


def _specific(text: str, option: str, expected: str) -> SpecificOffsets:
    """The offsets in JSON, which may also be an offset of a query's progress."""
    json_text = _unquoted(text)
    from_progress = _progress_offset(json_text)
    if from_progress is not None:
        json_text = from_progress
    numbers = parse_numbers(json_text, _offset, expected, _sentinel)
    partitions = {tp: _SENTINELS.get(number, number) for tp, number in numbers.partitions.items()}
    topics = {topic: _SENTINELS[number] for topic, number in numbers.topics.items()}
    others = None
    if numbers.others is not None:
        others = _SENTINELS[numbers.others]
    return SpecificOffsets(partitions, option, others, topics)


def _unquoted(text: str) -> str:
    """The JSON in a JSON string: the offsets in the JSON of a progress are such strings in Spark Connect."""
    while text.lstrip().startswith('"'):
        try:
            inner = parse_json(text)
        except ValueError:
            return text
        text = str(inner)
    return text


def _progress_offset(text: str) -> str | None:
    """The JSON of this option for an offset that a query's progress shows; ``None`` for another text.

    ``startOffset`` and ``endOffset`` are a :class:`BatchOffset`, whose ends are the next offsets to read.
    ``latestOffset`` has reports of the query beside the offsets, whose names begin with a hash sign as no topic's does.

    Raises:
        ValueError: a later release wrote the offset.
    """
    try:
        shown = parse_json(text)
    except ValueError:
        return None  # an error of the other parser says what is wrong
    if not isinstance(shown, dict):
        return None
    if _is_batch_offset(shown):
        try:
            return as_json(BatchOffset.from_json(shown).ends())
        except CheckpointError as error:
            raise ValueError(f"JSON that this release can read. {error.happened.rstrip('.')}") from None
    topics = {name: values for name, values in shown.items() if not name.startswith("#")}
    if topics != shown:
        return json.dumps(topics)
    return None


def _is_batch_offset(shown: dict[str, Any]) -> bool:
    """Whether this is a :class:`BatchOffset`, and not offsets of topics that are called version and topics."""
    version = shown.get("version")
    # Such a topic may have a word, or -2 or -1 for it.
    is_version = isinstance(version, int) and version > 0
    return is_version and "topics" in shown


def parse_timestamp_strategy(text: str) -> bool:
    """The value of ``startingOffsetsByTimestampStrategy``: whether it is ``latest``.

    Raises:
        ValueError: the value is invalid; the message is the rest of a sentence that begins with "It must be".
    """
    return word(text, "error", "latest") == "latest"


def timestamp_parser(option: str, or_latest: bool = False) -> Callable[[str], AtTimestamp]:
    """The parser of an option with one time for all partitions; it raises as :func:`parse_start` does."""
    expected = "a whole number of milliseconds since 1970, for example 1735689600000"

    def parse(text: str) -> AtTimestamp:
        if not re.fullmatch(r"\+?\d{1,19}", text.strip()):
            raise ValueError(expected)
        if int(text) > MAX_OFFSET:
            raise ValueError(expected)
        try:
            return AtTimestamp(_time(int(text)), option, or_latest)
        except ValueError as error:
            raise ValueError(f"{expected} ({error})") from None

    return parse


def timestamps_parser(option: str, or_latest: bool = False) -> Callable[[str], AtTimestamp]:
    """The parser of an option with a time for each partition, as JSON; it raises as :func:`parse_start` does."""
    expected = f"JSON with milliseconds since 1970 for every partition of the subscription, for example {EXAMPLE_TIMES}"
    return lambda text: AtTimestamp(parse_numbers(text, _time, expected).partitions, option, or_latest)


def _word(value: Any) -> Any:
    """The number that a word stands for; other values as they are."""
    if not isinstance(value, str):
        return value
    return _WORDS.get(value.strip().lower(), value)


def _sentinel(value: Any) -> int:
    number = _word(value)
    if _is_integer(number) and number in _SENTINELS:
        return int(number)
    raise ValueError("neither earliest nor latest")


def _offset(value: Any) -> int:
    return _number(_word(value), -2)


def _time(value: Any) -> int:
    number = _number(value, 0)
    if number in _SECONDS:
        raise ValueError(f"{number} is in seconds: write {number * 1000}")
    for times, unit, per_millisecond in _FINER:
        if number in times:
            raise ValueError(f"{number} is in {unit}: write {number // per_millisecond}")
    return number


def _number(value: Any, minimum: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 23.0, as pandas writes whole numbers; Spark's own source reads it, too
    if _is_integer(value) and minimum <= value <= MAX_OFFSET:
        return int(value)
    shown = "a JSON object"
    if not isinstance(value, tuple):
        shown = printable(json.dumps(value))
    raise ValueError(f"{shown} is not a whole number from {minimum} to {MAX_OFFSET}")


def _is_integer(value: Any) -> bool:
    return type(value) is int  # JSON's true is an instance of int in Python
