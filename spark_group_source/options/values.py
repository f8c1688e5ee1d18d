"""Parsers of values. A parser raises ValueError for an invalid text; it completes "It must be"."""

from __future__ import annotations

import json
import re
import warnings

from spark_group_source.offsets import TopicPartition
from spark_group_source.option import non_blank
from spark_group_source.text import quoted
from spark_group_source.user_code import load

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
"""The largest numbers of 32 bits, as sizes and times in Kafka's requests, and of 64 bits, as Java's LONG."""

MAX_TEXT_BYTES = 2**15 - 1
"""Maximum size in bytes of a text in a Kafka request, whose length has 16 bits."""

MEMBER_SUFFIX_BYTES = 64
"""Room for what a coordinator appends to a client id to make a member id of it: a hyphen and a UUID."""

FOREVER = 1e9
"""The longest time in seconds, about 31 years. Java's 64-bit milliseconds are longer than any wait of Python."""


def host_ports(text: str) -> tuple[tuple[str, int], ...]:
    """``host:port`` pairs, each once; a scheme before a host is ignored."""
    pairs = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        if re.match(r"[A-Za-z_]+:?/", pair) and not re.match(r"[A-Za-z_]+://[^/]+$", pair):
            raise ValueError("host:port pairs separated by commas, and no URLs: broker1:9092, without a scheme or path")
        match = re.fullmatch(r"(?:[A-Za-z_]+://)?(\[[\w.:%-]+\]|[\w.%-]+):(\d{1,5})", pair)
        if not match or not 0 < int(match[2]) < 65536:
            raise ValueError(
                "host:port pairs separated by commas, for example broker1:9092,broker2:9092; an IPv6 address needs"
                " brackets: [::1]:9092"
            )
        pairs.append((match[1].strip("[]"), int(match[2])))
    if not pairs:
        raise ValueError("at least one host:port pair, for example broker1:9092")
    return tuple(dict.fromkeys(pairs))


def wire_name(text: str) -> str:
    """A name that is not blank, as a Kafka request can hold it."""
    return _fitting(text, MAX_TEXT_BYTES)


def optional_wire_name(text: str) -> str | None:
    """As :func:`wire_name`; ``None`` for a blank text, which is the default of Kafka's Java client."""
    return wire_name(text) if text.strip() else None


def client_id(text: str) -> str:
    """As :func:`wire_name`, with room for a member id; a blank text means the source's own choice."""
    return _fitting(text, MAX_TEXT_BYTES - MEMBER_SUFFIX_BYTES) if text.strip() else ""


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
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
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
    return bool(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name)) and name not in (".", "..")


def instance_id(text: str) -> str:
    """The id of a static member."""
    name = non_blank(text)
    if not _legal(name):
        raise ValueError("a name of at most 249 letters, digits, '.', '_' and '-'")
    return name


def partitions_json(text: str) -> frozenset[TopicPartition]:
    """Partition numbers by topic, as JSON."""
    invalid = ValueError('JSON of topics and their partitions, for example {"orders": [0, 1]}')
    try:
        # Pairs keep both of two equal names; a dictionary would silently drop the first.
        topics = json.loads(text, object_pairs_hook=tuple)
    except ValueError:
        raise invalid from None
    if not isinstance(topics, tuple) or not topics:
        raise invalid
    found = set[TopicPartition]()
    for name, numbers in topics:
        _check_topic(name)
        if not isinstance(numbers, list) or not numbers or not all(type(number) is int for number in numbers):
            raise invalid
        outside = [number for number in numbers if not 0 <= number < 2**31]
        if outside:
            raise ValueError(f"partition numbers from 0 to 2147483647 (topic {name!r} has {outside[0]})")
        found |= {TopicPartition(name, number) for number in numbers}
    return frozenset(found)


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


def boolean(text: str) -> bool:
    """``true`` or ``false``."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def _whole_number(text: str, minimum: int, maximum: int, of_what: str = "") -> int:
    # Leading zeros count for nothing, as in Java; Python limits the digits that it converts.
    match = re.fullmatch(r"\+?0*(\d{1,19})", text.strip())
    if not match or not minimum <= int(match[1]) <= maximum:
        raise ValueError(f"a whole number{of_what}, from {minimum} to {maximum}")
    return int(match[1])


def positive_count(text: str) -> int:
    """A whole number of at least 1 that fits into 64 bits."""
    return _whole_number(text, 1, MAX_INT64)


def byte_size(text: str) -> int:
    """A size in bytes."""
    return _whole_number(text, 1024, MAX_INT32, " of bytes")


_BYTE_UNITS: dict[str, int] = {
    unit: 1024**power
    for power, units in enumerate(("b", "k kb", "m mb", "g gb", "t tb", "p pb"))
    for unit in units.split()
}


def byte_string(text: str) -> int:
    """A size in bytes as Spark writes it: a number without a unit is in bytes, and ``k`` is 1024 bytes."""
    match = re.fullmatch(r"0*(\d{1,19})([a-z]*)", text.strip().lower())
    unit = _BYTE_UNITS.get(match[2] or "b") if match else None
    if not match or unit is None or int(match[1]) == 0:
        raise ValueError(
            "a whole number of bytes of at least 1, or one with a unit (b, k, m, g, t, p), for example 10g"
        )
    if int(match[1]) * unit > MAX_INT64:
        raise ValueError("less than 8192p, because the size is a 64-bit number in Spark")
    return int(match[1]) * unit


def socket_buffer_size(text: str) -> int:
    """The size of a socket buffer in bytes; -1 leaves it to the operating system."""
    if text.strip() == "-1":
        return -1
    try:
        return _whole_number(text, 1, MAX_INT32, " of bytes")
    except ValueError as error:
        raise ValueError(f"-1 for the operating system's choice, or {error}") from None


def byte_count(text: str) -> int:
    """A number of bytes, also 0."""
    return _whole_number(text, 0, MAX_INT32, " of bytes")


def port_range(text: str) -> tuple[int, int]:
    """The first and the last port of a range."""
    match = re.fullmatch(r"(\d{1,5})\s*-\s*(\d{1,5})", text.strip())
    if not match or not 0 < int(match[1]) < int(match[2]) < 65536:
        raise ValueError(
            "a range of ports from 1 to 65535, for example 40000-40099, because a query and its tasks need several"
            " connections to each broker"
        )
    return int(match[1]), int(match[2])


def dns_lookup(text: str) -> bool:
    """Whether the canonical names of their addresses replace the bootstrap servers."""
    known = {"use_all_dns_ips": False, "resolve_canonical_bootstrap_servers_only": True}
    try:
        return known[text.strip().lower()]
    except KeyError:
        raise ValueError("use_all_dns_ips or resolve_canonical_bootstrap_servers_only") from None


def retry_count(text: str) -> int:
    """A whole number of at least 0 that fits into 64 bits."""
    return _whole_number(text, 0, MAX_INT64)


def warn_or_fail(text: str) -> str:
    """``warn`` or ``fail``."""
    if text.strip().lower() not in ("warn", "fail"):
        raise ValueError("warn or fail")
    return text.strip().lower()


def skip_repeat_or_fail(text: str) -> str:
    """``skip``, ``repeat`` or ``fail``."""
    if text.strip().lower() not in ("skip", "repeat", "fail"):
        raise ValueError("skip, repeat or fail")
    return text.strip().lower()


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def duration(text: str) -> float:
    """A Spark duration, in seconds; a number without a unit is in milliseconds."""
    match = re.fullmatch(r"0*(\d{1,19})\s*([a-z]*)", text.strip().lower())
    unit = _UNITS.get(match[2] or "ms") if match else None
    if not match or unit is None:
        raise ValueError("a number with a unit (us, ms, s, m, min, h, d), for example 15m; without a unit it is in ms")
    return min(int(match[1]) * unit, FOREVER)


_INTERVAL_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}


def interval(text: str) -> float:
    """An interval as ``trigger(processingTime=...)`` takes it, in seconds; the short units of durations are allowed."""
    spelled = re.sub(r"^interval\s+", "", text.strip().lower())
    parts = re.findall(r"(\d{1,19})\s*([a-z]+)", spelled)
    if not re.fullmatch(r"(?:\d{1,19}\s*[a-z]+\s*)+", spelled) or any(unit not in _INTERVAL_UNITS for _, unit in parts):
        raise ValueError("a number with a unit, for example 10 minutes or 30s (units: ms, s, m, h, d)")
    return min(sum(int(number) * _INTERVAL_UNITS[unit] for number, unit in parts), FOREVER)


def assignor_names(text: str) -> tuple[str, ...]:
    """Names of assignors and ``module:Class`` paths."""
    from spark_group_source.group.assignors import parse_assignors  # most queries do not set this option

    return parse_assignors(text)


def importable_function(text: str) -> str:
    """The path of a function that can be imported: ``module:function``."""
    # The error of another text shows nothing of it: it may be a token in place of the function that returns tokens.
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


def idle_time(text: str) -> float:
    """As :func:`long_milliseconds`; -1 is :data:`FOREVER`, as in Kafka's Java client."""
    if text.strip() == "-1":
        return FOREVER
    try:
        return long_milliseconds(text)
    except ValueError as error:
        raise ValueError(f"-1 for no limit, or {error}") from None


def group_protocol(text: str) -> bool:
    """Whether it is ``consumer``."""
    if text.strip().lower() not in ("classic", "consumer"):
        raise ValueError("classic or consumer")
    return text.strip().lower() == "consumer"


def isolation_level(text: str) -> bool:
    """Whether it is ``read_committed``."""
    if text.strip().lower() not in ("read_committed", "read_uncommitted"):
        raise ValueError("read_committed or read_uncommitted")
    return text.strip().lower() == "read_committed"
