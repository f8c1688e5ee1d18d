"""Names and values as people write them: any case, blanks, typing errors; for every option of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.options import values
from spark_group_source.options.offsets import parse_end, parse_fallback, parse_start, parse_timestamp_strategy
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.unsupported import UNSUPPORTED
from spark_group_source.options.values import Option
from tests.unit.options.test_options import GOOD

LARGE = "2147483648"

KINDS: dict[Callable[[str], Any], tuple[str, tuple[str, ...], str]] = {
    values.host_ports: ("b1:9092,b2:9092", ("", "b1", "b1:x", "b1:0", "b1:65536", ":9092"), "host:port"),
    values.non_blank: ("a-name", ("", "  "), "not empty"),
    values.instance_id: ("host-1", ("", "a b", "..", "x" * 250), "name"),
    values.topic_names: ("a,b", ("", " , ", "a b", "..", "x" * 250), "topic names"),
    values.topic_pattern: ("orders-.*", ("", "orders-[", "(", "*"), "regular expression"),
    values.boolean: ("true", ("", "yes", "1", "on", "t"), "true or false"),
    values.byte_string: ("10g", ("", "0", "-1", "1.5g", "10 g", "g", "10gib", "0k"), "for example 10g"),
    values.positive_count: ("1000", ("", "0", "-1", "1.5", "1e3", "ten", "0x10", "1_000"), "at least 1"),
    values.byte_size: ("65536", ("", "0", "1023", "-1", "1m", LARGE), "from 1024 to 2147483647"),
    values.socket_buffer_size: ("65536", ("", "0", "-2", "64k", LARGE), "-1 for the operating system"),
    values.byte_count: ("1", ("", "-1", "1k", LARGE), "from 0 to 2147483647"),
    values.retry_count: ("3", ("", "-1", "3.0", "three"), "at least 0"),
    values.milliseconds: ("45000", ("", "0", "-1", "45s", "1.5", LARGE), "milliseconds, from 1 to 2147483647"),
    values.duration: ("15m", ("", "5 minutes", "-1s", "2.5s", "m", "15 parsecs"), "for example 15m"),
    values.interval: ("10 minutes", ("", "5", "-1s", "2.5s", "10 parsecs", "minutes"), "for example 10 minutes"),
    values.group_protocol: ("consumer", ("", "kip-848", "share"), "classic or consumer"),
    values.isolation_level: (
        "read_committed",
        ("", "committed", "READ-COMMITTED"),
        "read_committed or read_uncommitted",
    ),
    values.warn_or_fail: ("fail", ("", "ignore", "true"), "warn or fail"),
    values.importable_function: (
        "json:loads",
        ("", "json", "json:", "no_such_module:f", "json:nothing"),
        "module:function",
    ),
    values.port_range: ("40000-40099", ("", "40000", "0-10", "10-5", "1-65536", "a-b"), "for example 40000-40099"),
    values.dns_lookup: ("use_all_dns_ips", ("", "default", "all"), "use_all_dns_ips or resolve_canonical"),
    values.partitions_json: (
        '{"t":[0]}',
        ("", "t", "{}", '{"t":[]}', '{"t":["0"]}'),
        "JSON of topics and their partitions",
    ),
    parse_end: ("latest", ("", "earliest", "{}"), "latest or JSON"),
    parse_timestamp_strategy: ("latest", ("", "earliest"), "error or latest"),
    parse_start: ("earliest", ("", "newest", "-2"), "earliest, latest"),
    parse_fallback: ("fail", ("", "committed", "error"), "earliest, latest or fail"),
    values.assignor_names: ("range,roundrobin", ("", "rang", ","), "range, roundrobin"),
}
"""Parser -> a good text, bad texts, and a part of the fix in the error."""

BY_NAME = {
    "startingTimestamp": ("0", ("", "-1", "2025-01-01"), "a whole number of milliseconds"),
    "endingTimestamp": ("0", ("", "-1", "2025-01-01"), "a whole number of milliseconds"),
    "startingOffsetsByTimestamp": ('{"t":{"0":0}}', ("", "0", '{"t":{"0":-1}}'), "JSON with milliseconds"),
    "endingOffsetsByTimestamp": ('{"t":{"0":0}}', ("", "0", '{"t":{"0":-1}}'), "JSON with milliseconds"),
}
"""The same for options with their own parser."""

VALUES = [option for option in OPTIONS if not option.name.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl."))]
"""test_security_options.py tests the security options, which need files and other options."""

NAMES = {
    values.non_blank,
    values.instance_id,
    values.topic_names,
    values.topic_pattern,
    values.importable_function,
    values.host_ports,
    values.partitions_json,
    values.assignor_names,
}
"""Parsers of texts whose case matters."""

ONLY_WITH = {
    "startingOffsetsFallback": {"startingOffsets": "committed"},
    "kafka.group.remote.assignor": {"kafka.group.protocol": "consumer"},
}
WITHOUT = {"subscribePattern": "subscribe", "assign": "subscribe"}


def by_name(option: Option) -> str:
    return option.name


def others(option: Option) -> dict[str, str]:
    """The other options that this option needs."""
    left_out = {option.name, WITHOUT.get(option.name)}
    return {key: text for key, text in GOOD.items() if key not in left_out} | ONLY_WITH.get(option.name, {})


def examples(option: Option) -> tuple[str, tuple[str, ...], str]:
    return BY_NAME[option.name] if option.name in BY_NAME else KINDS[option.parse]


@pytest.mark.parametrize("option", VALUES, ids=by_name)
@pytest.mark.parametrize("written", [str.lower, str.upper, str.swapcase, str.title])
def test_names_are_read_in_any_case(option: Option, written: Callable[[str], str]) -> None:
    good, _, _ = examples(option)
    expected = parse_options(others(option) | {option.name: good})
    assert parse_options(others(option) | {written(option.name): good}) == expected


@pytest.mark.parametrize("option", [each for each in VALUES if each.parse is not values.topic_pattern], ids=by_name)
def test_blanks_around_a_value_are_ignored(option: Option) -> None:
    good, _, _ = examples(option)
    expected = parse_options(others(option) | {option.name: good})
    assert parse_options(others(option) | {option.name: f" \t{good}\n"}) == expected


def test_blanks_in_a_pattern_are_kept() -> None:
    without_topics = {key: text for key, text in GOOD.items() if key != "subscribe"}
    assert parse_options(without_topics | {"subscribePattern": " orders$"}).group.subscription.pattern == " orders$"


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in NAMES], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("written", [str.lower, str.upper, str.title])
def test_words_are_read_in_any_case(kind: Callable[[str], Any], written: Callable[[str], str]) -> None:
    good, _, _ = KINDS[kind]
    assert kind(written(good)) == kind(good)


BAD = [
    pytest.param(option, text, id=f"{option.name}={text[:20]!r}") for option in VALUES for text in examples(option)[1]
]


@pytest.mark.parametrize(("option", "text"), BAD)
def test_the_error_for_a_bad_value_has_the_name_the_value_and_the_fix(option: Option, text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(others(option) | {option.name.upper(): text})
    assert raised.value.happened == f"Option '{option.name}' is {text!r}."
    assert raised.value.action.startswith("It must be ")
    assert examples(option)[2] in raised.value.action


# Typing errors


def dropped(name: str) -> str:
    return name[: len(name) // 2] + name[len(name) // 2 + 1 :]


def doubled(name: str) -> str:
    return name[: len(name) // 2] + name[len(name) // 2] + name[len(name) // 2 :]


def swapped(name: str) -> str:
    middle = len(name) // 2
    return name[:middle] + name[middle + 1] + name[middle] + name[middle + 2 :]


def with_underscores(name: str) -> str:
    return name.removeprefix("kafka.").replace(".", "_")


def with_the_prefix(name: str) -> str:
    return f"kafka.{name}"


MISTYPED = [
    pytest.param(option, typed(option.name), id=typed(option.name))
    for option in OPTIONS
    for typed in (dropped, doubled, swapped, with_underscores, with_the_prefix)
    if typed(option.name).lower() != option.name.lower()
]


@pytest.mark.parametrize(("option", "wrong"), MISTYPED)
def test_the_error_for_a_mistyped_name_suggests_the_option(option: Option, wrong: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(GOOD | {wrong: "s3cret"})
    assert raised.value.happened == f"Option '{wrong}' is unknown."
    assert raised.value.action == f"Did you mean '{option.name}'?"
    assert "s3cret" not in str(raised.value)


def test_the_error_for_an_unlike_name_lists_all_options() -> None:
    with pytest.raises(OptionError, match="'qqqqqqqqqqqq' is unknown") as raised:
        parse_options(GOOD | {"qqqqqqqqqqqq": "1"})
    assert all(option.name in raised.value.action for option in OPTIONS)


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("written", [str.lower, str.upper, "kafka.{}".format, lambda name: name.replace(".", "_")])
def test_an_unsupported_option_is_an_error_in_any_spelling(name: str, written: Callable[[str], str]) -> None:
    with pytest.raises(OptionError, match="is not supported: ") as raised:
        parse_options(GOOD | {written(name): "s3cret"})
    assert raised.value.action == UNSUPPORTED[name][1]
    assert "s3cret" not in str(raised.value)
