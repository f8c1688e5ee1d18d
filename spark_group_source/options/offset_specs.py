"""Where a read starts and where it ends: the choices, and how the texts of their options are read. Pure.

Names and meanings are those of Spark's own Kafka source, which writes -2 for the beginning and -1 for the end of a log.
Here these stand in the options' JSON alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition

GOOD_OFFSETS = '{"orders":{"0":23,"1":-2}}'
GOOD_ENDS = '{"orders":{"0":23,"1":-1}}'
GOOD_TIMES = '{"orders":{"0":1735689600000,"1":1735689600000}}'

_LARGEST = 2**63 - 1
_SECONDS = range(10**9, 10**10)
"""Seconds since 1970 of the years 2001 to 2286. As milliseconds these are days of the year 1970."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The beginning of each log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of each log; under read_committed the last stable offset."""


@dataclass(frozen=True, slots=True)
class FromCommitted:
    """The group's committed offset. Where there is none: ``fallback``, or it is an error."""

    fallback: Earliest | Latest | None


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """A place in each partition of the subscription, as ``option`` says in JSON."""

    offsets: Mapping[TopicPartition, int | Earliest | Latest]
    option: str


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record of each partition at or after a time, as ``option`` says: one for all, or one for each.

    Times are in milliseconds since 1970. Where no record is as late: the end of the log if ``or_latest``, otherwise it
    is an error.
    """

    timestamps: int | Mapping[TopicPartition, int]
    option: str
    or_latest: bool


OffsetSpec = Earliest | Latest | SpecificOffsets | AtTimestamp
"""Places in the logs."""

StartSpec = OffsetSpec | FromCommitted
"""Where partitions start."""

EndSpec = Latest | SpecificOffsets | AtTimestamp
"""Where the partitions of a bounded read end."""


def parse_start(text: str) -> Earliest | Latest | FromCommitted | SpecificOffsets:
    """The value of ``startingOffsets``.

    Raises:
        ValueError: it is none; the message goes on from "It must be".
    """
    named: dict[str, Earliest | Latest | FromCommitted] = {
        "earliest": Earliest(),
        "latest": Latest(),
        "committed": FromCommitted(None),
    }
    good = (
        "earliest, latest, committed or JSON with an offset for every partition of the subscription, -2 for its"
        f" beginning or -1 for its end, for example {GOOD_OFFSETS}"
    )
    found = named.get(text.strip().lower())
    return found or SpecificOffsets(_offsets(text, good), "startingOffsets")


def parse_fallback(text: str) -> FromCommitted:
    """The value of ``startingOffsetsFallback``.

    Raises:
        ValueError: it is none; the message goes on from "It must be".
    """
    fallbacks = {"earliest": FromCommitted(Earliest()), "latest": FromCommitted(Latest()), "fail": FromCommitted(None)}
    try:
        return fallbacks[text.strip().lower()]
    except KeyError:
        raise ValueError("earliest, latest or fail") from None


def parse_end(text: str) -> Latest | SpecificOffsets:
    """The value of ``endingOffsets``.

    Raises:
        ValueError: it is none; the message goes on from "It must be".
    """
    if text.strip().lower() == "latest":
        return Latest()
    good = (
        "latest or JSON with an offset for every partition of the subscription, or -1 for its end, for example"
        f" {GOOD_ENDS}"
    )
    return SpecificOffsets(_offsets(text, good), "endingOffsets")


def parse_timestamp_strategy(text: str) -> bool:
    """The value of ``startingOffsetsByTimestampStrategy``: whether it is ``latest``.

    Raises:
        ValueError: it is none; the message goes on from "It must be".
    """
    if text.strip().lower() not in ("error", "latest"):
        raise ValueError("error or latest")
    return text.strip().lower() == "latest"


def timestamp_parser(option: str, or_latest: bool = False) -> Callable[[str], AtTimestamp]:
    """Reads the value of an option that is one time for all partitions. It raises as :func:`parse_start`."""

    good = "a whole number of milliseconds since 1970, for example 1735689600000"

    def parse(text: str) -> AtTimestamp:
        if not re.fullmatch(r"\+?\d{1,19}", text.strip()) or int(text) > _LARGEST:
            raise ValueError(good)
        try:
            return AtTimestamp(_time(int(text)), option, or_latest)
        except ValueError as error:
            raise ValueError(f"{good} ({error})") from None

    return parse


def timestamps_parser(option: str, or_latest: bool = False) -> Callable[[str], AtTimestamp]:
    """Reads the value of an option that has a time for each partition, as JSON. It raises as :func:`parse_start`."""
    good = f"JSON with milliseconds since 1970 for every partition of the subscription, for example {GOOD_TIMES}"
    return lambda text: AtTimestamp(_by_partition(text, _time, good), option, or_latest)


def check_start(given: StartSpec | None, fallback: FromCommitted | None, time: AtTimestamp | None, reset: bool) -> None:
    """Refuses what contradicts ``startingOffsets`` (``given``).

    Args:
        fallback: ``startingOffsetsFallback``, if given.
        time: to start at, if one is given.
        reset: ``resetOffsetsOnStart``.

    Raises:
        OptionError: one of them does.
    """
    if not isinstance(given, FromCommitted):
        if fallback is not None:
            raise OptionError(
                "Option 'startingOffsetsFallback' is given, and 'startingOffsets' is not committed.",
                "Leave it out: in a stream 'startingOffsets' is where partitions without a committed offset start; or"
                " set that to committed.",
            )
        return
    if time is not None:
        raise OptionError(
            f"Option '{time.option}' is given, and 'startingOffsets' is committed.",
            "Leave one of them out. In a stream committed offsets go first whatever is given.",
        )
    if reset:
        raise OptionError(
            "Option 'resetOffsetsOnStart' is true, and 'startingOffsets' is committed.",
            "There is nothing to reset to: set 'startingOffsets' to earliest, latest or offsets.",
        )


def as_json(values: Mapping[TopicPartition, int | Earliest | Latest]) -> str:
    """The JSON that the options take, in one line; partitions sorted by number."""
    by_topic: dict[str, dict[str, int]] = {}
    for tp, value in sorted(values.items()):
        written = value if isinstance(value, int) else -2 if isinstance(value, Earliest) else -1
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = written
    return json.dumps(by_topic, separators=(",", ":"), ensure_ascii=False)


def _offsets(text: str, good: str) -> dict[TopicPartition, int | Earliest | Latest]:
    sentinels: dict[int, Earliest | Latest] = {-2: Earliest(), -1: Latest()}
    return {tp: sentinels.get(number, number) for tp, number in _by_partition(text, _offset, good).items()}


def _by_partition(text: str, value_of: Callable[[Any], int], good: str) -> dict[TopicPartition, int]:
    """``{topic: {partition: number}}``; what is wrong with the text follows on ``good``."""
    found: dict[TopicPartition, int] = {}
    if not text.lstrip().startswith(("{", "[")):
        raise ValueError(good)  # a word that is mistyped: no JSON to say more of
    try:
        # As pairs: of a name that is there twice, a dictionary would drop the first in silence.
        for topic, values in _pairs(json.loads(text, object_pairs_hook=tuple)):
            for key, value in _pairs(values):
                tp = TopicPartition(topic, _partition(key))
                if tp in found:
                    raise ValueError(f"it names {tp} twice")
                found[tp] = value_of(value)
        if not found:
            raise ValueError("it names no partition")
    except ValueError as error:
        raise ValueError(f"{good} ({error})") from None
    return found


def _pairs(found: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(found, tuple):
        raise ValueError("a topic has no partitions here")
    return found


def _partition(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{text!r} is no partition's number")
    return int(text)


def _offset(value: Any) -> int:
    return _number(value, -2)


def _time(value: Any) -> int:
    number = _number(value, 0)
    if number in _SECONDS:
        raise ValueError(f"{number} are seconds: write {number * 1000}")
    return number


def _number(value: Any, least: int) -> int:
    # JSON's true is an int to Python.
    if type(value) is not int or not least <= value <= _LARGEST:
        shown = "JSON in braces" if isinstance(value, tuple) else json.dumps(value)
        raise ValueError(f"{shown} is no whole number of at least {least}")
    return value
