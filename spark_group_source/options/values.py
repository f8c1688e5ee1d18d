"""Parsers of values.

A parser raises ValueError for an invalid text; the message is the rest of a sentence that begins with "It must be".
"""

from __future__ import annotations

import re
import warnings
from typing import Any

from spark_group_source.json_text import parse_json
from spark_group_source.offsets import TopicPartition
from spark_group_source.option import listed, non_blank
from spark_group_source.text import quoted
from spark_group_source.user_code import load

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
"""The largest numbers of 32 bits, for sizes and times in Kafka's requests, and of 64 bits, for Java's LONG."""

MAX_TEXT_BYTES = 2**15 - 1
"""Maximum size in bytes of a text in a Kafka request, whose length has 16 bits."""

MEMBER_SUFFIX_BYTES = 64
"""Maximum size in bytes of the suffix by which a coordinator makes a client id a member id: a hyphen and a UUID."""

MIN_BYTE_SIZE = 1024
"""Minimum size of a fetch in bytes. A broker returns the first record batch of a fetch whole, whatever its limit."""

FOREVER = 1e9
"""The longest time in seconds, about 31 years. Python cannot wait as long as Java's 64-bit milliseconds allow."""


def host_ports(text: str) -> tuple[tuple[str, int], ...]:
    """``host:port`` pairs, each once; a scheme before a host is ignored."""
    pairs = [_host_port(pair) for pair in listed(text)]
    if not pairs:
        raise ValueError("at least one host:port pair, for example broker1:9092")
    return tuple(dict.fromkeys(pairs))


def _host_port(pair: str) -> tuple[str, int]:
    is_url = re.match(r"[A-Za-z_]+:?/", pair)
    has_only_a_scheme = re.match(r"[A-Za-z_]+://[^/]+$", pair)
    if is_url and not has_only_a_scheme:
        raise ValueError("host:port pairs separated by commas, and no URLs: broker1:9092, without a scheme or path")
    match = re.fullmatch(r"(?:[A-Za-z_]+://)?(\[[\w.:%-]+\]|[\w.%-]+):(\d{1,5})", pair)
    if match is None or not _is_port(int(match[2])):
        raise ValueError(
            "host:port pairs separated by commas, for example broker1:9092,broker2:9092; an IPv6 address needs"
            " brackets: [::1]:9092"
        )
    return match[1].strip("[]"), int(match[2])


def _is_port(number: int) -> bool:
    return 0 < number < 2**16


def wire_name(text: str) -> str:
    """A name that is not blank, as a Kafka request can hold it."""
    return _fitting(text, MAX_TEXT_BYTES)


def optional_wire_name(text: str) -> str | None:
    """As :func:`wire_name`, or ``None`` for a blank text, which is the default of Kafka's Java client."""
    if not text.strip():
        return None
    return wire_name(text)


def client_id(text: str) -> str:
    """As :func:`wire_name`, with room for the suffix of a member id; empty for a blank text."""
    if not text.strip():
        return ""
    return _fitting(text, MAX_TEXT_BYTES - MEMBER_SUFFIX_BYTES)


def _fitting(text: str, maximum: int) -> str:
    name = non_blank(text)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("a name that can be encoded as UTF-8") from None
    if size > maximum:
        raise ValueError(f"a name of at most {maximum} bytes, because a Kafka request has no room for {size}")
    return name


def topic_names(text: str) -> tuple[str, ...]:
    """Topic names, each once."""
    names = tuple(dict.fromkeys(listed(text)))
    if not names:
        raise ValueError("one or more topic names separated by commas")
    for name in names:
        _check_topic(name, "; for a regular expression set 'subscribePattern' instead")
    return names


def _check_topic(name: str, alternative: str = "") -> None:
    if not _legal(name):
        expected = "topic names of at most 249 letters, digits, '.', '_' and '-'"
        raise ValueError(f"{expected} ({quoted(name)} is invalid){alternative}")


def _legal(name: str) -> bool:
    """Kafka's rule for the names of topics and static members: org.apache.kafka.common.internals.Topic."""
    if name in (".", ".."):
        return False
    return re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) is not None


def instance_id(text: str) -> str:
    """The id of a static member."""
    name = non_blank(text)
    if not _legal(name):
        raise ValueError("a name of at most 249 letters, digits, '.', '_' and '-'")
    return name


_PARTITIONS = 'JSON of topics and their partitions, for example {"orders": [0, 1]}'


def partitions_json(text: str) -> frozenset[TopicPartition]:
    """Partition numbers by topic, as JSON."""
    try:
        topics = parse_json(text, pairs=True)
    except ValueError:
        raise ValueError(_PARTITIONS) from None
    is_object = isinstance(topics, tuple)
    if not is_object or not topics:
        raise ValueError(_PARTITIONS)
    found = set[TopicPartition]()
    for name, numbers in topics:
        _check_topic(name)
        _check_partition_numbers(name, numbers)
        found |= {TopicPartition(name, number) for number in numbers}
    return frozenset(found)


def _check_partition_numbers(topic: str, numbers: Any) -> None:
    is_list = isinstance(numbers, list)
    if not is_list or not numbers:
        raise ValueError(_PARTITIONS)
    for number in numbers:
        if type(number) is not int:  # JSON's true is an instance of int in Python
            raise ValueError(_PARTITIONS)
    for number in numbers:
        if not 0 <= number <= MAX_INT32:
            raise ValueError(f"partition numbers from 0 to {MAX_INT32} (topic {topic!r} has {number})")


def topic_pattern(text: str) -> str:
    """A regular expression."""
    try:
        with warnings.catch_warnings():
            # Java's nested sets have another meaning in Python, which only warns about them.
            warnings.simplefilter("error", FutureWarning)
            re.compile(text)
    except (re.error, FutureWarning) as error:
        raise ValueError(f"a regular expression of Python's re module, which reports: {error}") from None
    if not text.strip():
        raise ValueError("a regular expression that is not empty, for example orders-.*")
    return text


def word(text: str, *words: str) -> str:
    """One of these words, in any case; returns it in lower case."""
    written = text.strip().lower()
    if written not in words:
        raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}")
    return written


def boolean(text: str) -> bool:
    """``true`` or ``false``."""
    return word(text, "true", "false") == "true"


def _whole_number(text: str, minimum: int, maximum: int, of_what: str = "") -> int:
    # Leading zeros count for nothing, as in Java; Python limits the digits that it converts.
    match = re.fullmatch(r"\+?0*(\d{1,19})", text.strip())
    if match is not None and minimum <= int(match[1]) <= maximum:
        return int(match[1])
    raise ValueError(f"a whole number{of_what}, from {minimum} to {maximum}")


def positive_count(text: str) -> int:
    """A whole number of at least 1 that fits into 64 bits."""
    return _whole_number(text, 1, MAX_INT64)


def byte_size(text: str) -> int:
    """A size in bytes. One below :data:`MIN_BYTE_SIZE`, which Kafka's Java client accepts, counts as that."""
    return max(MIN_BYTE_SIZE, byte_count(text))


_BYTE_UNITS = {
    **dict.fromkeys(("", "b"), 1),
    **dict.fromkeys(("k", "kb"), 2**10),
    **dict.fromkeys(("m", "mb"), 2**20),
    **dict.fromkeys(("g", "gb"), 2**30),
    **dict.fromkeys(("t", "tb"), 2**40),
    **dict.fromkeys(("p", "pb"), 2**50),
}


def byte_string(text: str) -> int:
    """A size in bytes as Spark writes it: a number without a unit is in bytes, and ``k`` is 1024 bytes."""
    size = None
    match = re.fullmatch(r"0*(\d{1,19})([a-z]*)", text.strip().lower())
    if match is not None and match[2] in _BYTE_UNITS:
        size = int(match[1]) * _BYTE_UNITS[match[2]]
    if size is None or size == 0:
        raise ValueError("a whole number of at least 1, in bytes or with a unit (b, k, m, g, t, p), for example 10g")
    if size > MAX_INT64:
        raise ValueError("less than 8192p, because the size is a 64-bit number in Spark")
    return size


def socket_buffer_size(text: str) -> int:
    """The size of a socket buffer in bytes, or -1 for the choice of the operating system."""
    if text.strip() == "-1":
        return -1
    try:
        return _whole_number(text, 1, MAX_INT32, " of bytes")
    except ValueError as error:
        raise ValueError(f"-1 for the operating system's choice, or {error}") from None


def byte_count(text: str) -> int:
    """A number of bytes, at least 0."""
    return _whole_number(text, 0, MAX_INT32, " of bytes")


def port_range(text: str) -> tuple[int, int]:
    """The first and the last port of a range."""
    match = re.fullmatch(r"(\d{1,5})\s*-\s*(\d{1,5})", text.strip())
    if match is not None:
        first, last = int(match[1]), int(match[2])
        if _is_port(first) and _is_port(last) and first < last:
            return first, last
    raise ValueError(
        "a range of ports from 1 to 65535, for example 40000-40099, because a query and its tasks need several"
        " connections to each broker"
    )


def dns_lookup(text: str) -> bool:
    """Whether the client resolves the bootstrap servers to the canonical names of their addresses."""
    canonical = "resolve_canonical_bootstrap_servers_only"
    return word(text, "use_all_dns_ips", canonical) == canonical


def retry_count(text: str) -> int:
    """A whole number of at least 0 that fits into 64 bits."""
    return _whole_number(text, 0, MAX_INT64)


def warn_or_fail(text: str) -> str:
    """``warn`` or ``fail``."""
    return word(text, "warn", "fail")


def skip_repeat_or_fail(text: str) -> str:
    """``skip``, ``repeat`` or ``fail``."""
    return word(text, "skip", "repeat", "fail")


_UNITS = {"": 1e-3, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def duration(text: str) -> float:
    """A Spark duration, in seconds; a number without a unit is in milliseconds."""
    match = re.fullmatch(r"0*(\d{1,19})\s*([a-z]*)", text.strip().lower())
    if match is not None and match[2] in _UNITS:
        return min(int(match[1]) * _UNITS[match[2]], FOREVER)
    raise ValueError("a number with a unit (us, ms, s, m, min, h, d), for example 15m, or a number of milliseconds")


_INTERVAL_UNITS = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 604800),
}


def interval(text: str) -> float:
    """An interval as ``trigger(processingTime=...)`` accepts it, or with the short units of durations, in seconds. Only
    seconds may have a fraction."""
    return _interval(text, "a number with a unit, for example 10 minutes or 30s (units: ms, s, m, h, d)")


def positive_interval(text: str) -> float:
    """As :func:`interval`, and longer than 0."""
    expected = "a duration above 0 with a unit, for example 30s or 2 minutes (units: ms, s, m, h, d)"
    seconds = _interval(text, expected)
    if seconds <= 0:
        raise ValueError(expected)
    return seconds


_NUMBER = r"\+?(?:\d{1,19}(?:\.\d{1,9}(?=\s*s))?|\.\d{1,9}(?=\s*s))"
"""A number in an interval: only seconds may have a fraction, as in Spark."""


def _interval(text: str, expected: str) -> float:
    """The sum, in seconds, of numbers that each have a unit."""
    spelled = re.sub(r"^interval\s+", "", text.strip().lower())
    if not re.fullmatch(rf"(?:{_NUMBER}\s*[a-z]+\s*)+", spelled):
        raise ValueError(expected)
    seconds = 0.0
    for count, unit in re.findall(rf"({_NUMBER})\s*([a-z]+)", spelled):
        if unit not in _INTERVAL_UNITS:
            raise ValueError(expected)
        seconds += float(count) * _INTERVAL_UNITS[unit]
    return min(seconds, FOREVER)


def assignor_names(text: str) -> tuple[str, ...]:
    """Names of assignors and ``module:Class`` paths."""
    from spark_group_source.group.assignors import parse_assignors  # most queries do not set this option

    return parse_assignors(text)


def importable_function(text: str) -> str:
    """The path of a function that can be imported: ``module:function``."""
    # The error shows nothing of the text, which may be a token instead of the function that returns tokens.
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", text.strip()):
        raise ValueError("module:function, for example my_package.tokens:fetch")
    load(text, "function")
    return text.strip()


def milliseconds(text: str) -> float:
    """A number of milliseconds that fits into 32 bits, in seconds."""
    return _whole_number(text, 1, MAX_INT32, " of milliseconds") / 1000


def long_milliseconds(text: str) -> float:
    """A number of milliseconds that fits into 64 bits, in seconds: what Kafka's Java client declares as a LONG."""
    return min(_whole_number(text, 1, MAX_INT64, " of milliseconds") / 1000, FOREVER)


def wait(text: str) -> float:
    """A number of milliseconds that fits into 32 bits, in seconds. 0, which Kafka's Java client accepts, counts as 1:
    without any wait, a loop would keep a core busy."""
    return max(1, _whole_number(text, 0, MAX_INT32, " of milliseconds")) / 1000


def long_wait(text: str) -> float:
    """As :func:`wait`, of a number that fits into 64 bits."""
    return min(max(1, _whole_number(text, 0, MAX_INT64, " of milliseconds")) / 1000, FOREVER)


def idle_time(text: str) -> float:
    """As :func:`long_milliseconds`; -1 is :data:`FOREVER`, as in Kafka's Java client."""
    if text.strip() == "-1":
        return FOREVER
    try:
        return long_milliseconds(text)
    except ValueError as error:
        raise ValueError(f"-1 for no limit, or {error}") from None


def group_protocol(text: str) -> bool:
    """Whether the group protocol is ``consumer``; otherwise it is ``classic``."""
    return word(text, "classic", "consumer") == "consumer"


def isolation_level(text: str) -> bool:
    """Whether the level is ``read_committed``; otherwise it is ``read_uncommitted``."""
    return word(text, "read_committed", "read_uncommitted") == "read_committed"
