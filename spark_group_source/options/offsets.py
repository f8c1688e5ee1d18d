"""Where a read starts and ends, as the options say it, and the parsers of these options. Pure.

The names come from Spark's own Kafka source, which writes -2 for earliest and -1 for latest. Here only the JSON of the
options contains these numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.errors import CheckpointError, OptionError
from spark_group_source.offsets import COUNTERS, MAX_OFFSET, BatchOffset, TopicPartition
from spark_group_source.text import printable, quoted

OTHERS = "*"
"""The name that stands for all partitions that the JSON does not name. No topic can have it."""


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
        # Pairs keep both of two equal names; a dictionary would silently drop the first.
        numbers = _numbers(_topics(json.loads(text, object_pairs_hook=tuple)), number_of, whole_of)
    except ValueError as error:
        raise ValueError(f"{expected} ({error})") from None
    return numbers


def _numbers(pairs: tuple[tuple[str, Any], ...], number_of: NumberOf, whole_of: NumberOf | None) -> Numbers:
    partitions: dict[TopicPartition, int] = {}
    topics: dict[str, int] = {}
    for topic, values in pairs:
        if whole_of is not None and (topic == OTHERS or not isinstance(values, tuple)):
            if topic in topics:
                raise ValueError(f"the JSON names {quoted_in_json(topic)} twice")
            topics[topic] = _whole(topic, values, whole_of)
            continue
        for key, value in _partitions(topic, values):
            tp = TopicPartition(topic, _partition(key))
            if tp in partitions:
                raise ValueError(f"the JSON names {tp} twice")
            partitions[tp] = number_of(value)
    others = topics.pop(OTHERS, None)
    if others is not None and not partitions and not topics:
        raise ValueError(f'with "{OTHERS}" alone write earliest or latest, without JSON')
    _check_topics(topics, partitions)
    return Numbers(partitions, topics, others)


def _check_topics(topics: Collection[str], partitions: Collection[TopicPartition]) -> None:
    in_both = sorted(set(topics) & {tp.topic for tp in partitions})
    if in_both:
        raise ValueError(f"the JSON names {quoted_in_json(in_both[0])} as a whole and by partition")
    if not partitions and not topics:
        raise ValueError("the JSON names no partition")


def _whole(topic: str, value: Any, whole_of: NumberOf) -> int:
    """The number that stands for all partitions of a topic, or for :data:`OTHERS`."""
    try:
        return whole_of(value)
    except ValueError:
        if topic == OTHERS:
            raise ValueError(f'"{OTHERS}" stands for all other partitions, and must be -2 or -1') from None
        raise ValueError(
            f"{quoted_in_json(topic)} must have an offset for each of its partitions, or earliest or latest"
        ) from None


def quoted_in_json(text: str) -> str:
    """A text as JSON has it, cut to a readable length."""
    return printable(json.dumps(text, ensure_ascii=False))


def _topics(value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, tuple):
        raise ValueError("a JSON array names no topics")
    return value


def _partitions(topic: str, value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, tuple):
        raise ValueError(f"{quoted_in_json(topic)} has no partitions: a value for each of them is needed")
    return value


def _partition(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{quoted(text)} is not a partition number")
    return int(text)


EXAMPLE_OFFSETS = '{"orders":{"0":23,"1":-2}}'
EXAMPLE_TOPICS = '{"orders":"earliest"}'
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

    ``topics`` apply to all partitions of a topic, of which ``offsets`` names none. ``others`` applies to the partitions
    that neither names. If it is ``None``, the JSON must name all.
    """

    offsets: Mapping[TopicPartition, int | Earliest | Latest]
    option: str
    others: Earliest | Latest | None = None
    topics: Mapping[str, Earliest | Latest] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> int | Earliest | Latest | None:
        """The offset of a partition; ``None`` if the JSON says nothing of it."""
        return self.offsets.get(tp, self.topics.get(tp.topic, self.others))

    @property
    def values(self) -> list[int | Earliest | Latest]:
        """All offsets, without their partitions."""
        others = [] if self.others is None else [self.others]
        return [*self.offsets.values(), *self.topics.values(), *others]

    @property
    def digest(self) -> str:
        """Eight characters, others for other offsets."""
        return hashlib.sha256(as_json(self.offsets, self.others, self.topics).encode()).hexdigest()[:8]


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
        f' earliest, -1 is latest and "{OTHERS}" stands for all other partitions, for example {EXAMPLE_OFFSETS} or'
        f" {EXAMPLE_TOPICS}"
    )
    word = words.get(text.strip().lower())
    if word is not None:
        return word
    return _specific(text, "startingOffsets", expected)


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
        f' {EXAMPLE_ENDS} or {{"orders":"latest"}}'
    )
    spec = _specific(text, "endingOffsets", expected)
    if spec.others is not None:
        raise ValueError(f'{expected} (only startingOffsets may have "{OTHERS}")')
    return spec


def _specific(text: str, option: str, expected: str) -> SpecificOffsets:
    """The offsets in JSON, which may also be an offset of a query's progress."""
    json_text = _unquoted(text)
    numbers = parse_numbers(_progress_offset(json_text) or json_text, _offset, expected, _sentinel)
    return SpecificOffsets(
        {tp: _SENTINELS.get(number, number) for tp, number in numbers.partitions.items()},
        option,
        None if numbers.others is None else _SENTINELS[numbers.others],
        {topic: _SENTINELS[number] for topic, number in numbers.topics.items()},
    )


def _unquoted(text: str) -> str:
    """The JSON in a JSON string: the offsets in the JSON of a progress are such strings in Spark Connect."""
    while text.lstrip().startswith('"'):
        try:
            inner = json.loads(text)
        except ValueError:
            return text
        text = str(inner)
    return text


def _progress_offset(text: str) -> str | None:
    """The JSON of this option for an offset that a query's progress shows; ``None`` for another text.

    ``startOffset`` and ``endOffset`` are a :class:`BatchOffset`, whose ends are the next offsets to read.
    ``latestOffset`` has the counters of the query beside the offsets.

    Raises:
        ValueError: a later release wrote the offset.
    """
    try:
        shown = json.loads(text)
    except ValueError:
        return None  # an error of the other parser says what is wrong
    if not isinstance(shown, dict):
        return None
    version = shown.get("version")
    # A topic with this name may have a word, or -2 or -1 for it.
    if isinstance(version, int) and version > 0 and "topics" in shown:
        try:
            return as_json(BatchOffset.from_json(shown).ends())
        except CheckpointError as error:
            raise ValueError(f"JSON that this release can read. {error.happened.rstrip('.')}") from None
    if COUNTERS in shown:
        return json.dumps({topic: offsets for topic, offsets in shown.items() if topic != COUNTERS})
    return None


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
    return lambda text: AtTimestamp(parse_numbers(text, _time, expected).partitions, option, or_latest)


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


def as_json(
    values: Mapping[TopicPartition, int | Earliest | Latest],
    others: Earliest | Latest | None = None,
    topics: Mapping[str, Earliest | Latest] | None = None,
) -> str:
    """The JSON of these values as the options accept it, in one line; partitions sorted by number."""
    by_topic: dict[str, Any] = {}
    for tp, value in sorted(values.items(), key=lambda item: item[0]):
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = number_in_json(value)
    for topic, value in sorted((topics or {}).items(), key=lambda item: item[0]):
        by_topic[topic] = "earliest" if isinstance(value, Earliest) else "latest"
    rest = {} if others is None else {OTHERS: number_in_json(others)}
    return json.dumps(by_topic | rest, separators=(",", ":"), ensure_ascii=False)


def number_in_json(value: int | Earliest | Latest) -> int:
    """The number that the JSON of the options has for this value."""
    return value if isinstance(value, int) else -2 if isinstance(value, Earliest) else -1


_SENTINELS: dict[int, Earliest | Latest] = {-2: Earliest(), -1: Latest()}
_WORDS = {"earliest": -2, "latest": -1}


def _word(value: Any) -> Any:
    """The number that a word stands for; other values as they are."""
    return _WORDS.get(value.strip().lower(), value) if isinstance(value, str) else value


def _sentinel(value: Any) -> int:
    number = _word(value)
    if type(number) is not int or number not in _SENTINELS:
        raise ValueError("neither earliest nor latest")
    return number


def _offset(value: Any) -> int:
    return _number(_word(value), -2)


def _time(value: Any) -> int:
    number = _number(value, 0)
    if number in _SECONDS:
        raise ValueError(f"{number} is in seconds: write {number * 1000}")
    return number


def _number(value: Any, minimum: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 23.0, as pandas writes whole numbers; Spark's own source reads it, too
    # JSON's true is an int in Python.
    if type(value) is not int or not minimum <= value <= MAX_OFFSET:
        shown = "a JSON object" if isinstance(value, tuple) else printable(json.dumps(value))
        raise ValueError(f"{shown} is not a whole number from {minimum} to {MAX_OFFSET}")
    return value
