"""Names and values as people write them: any case, blanks, typing errors; for every option of the table."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.option import Option, non_blank
from spark_group_source.options import values
from spark_group_source.options.offset_parsers import parse_end, parse_fallback, parse_start, parse_timestamp_strategy
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from spark_group_source.options.unsupported_names import UNSUPPORTED
from tests.unit.options.test_options import GOOD, PATTERN

LARGE, LONGEST = "2147483648", "9223372036854775807"
ASSIGN = ("", "t", "{}", "[0]", '{"t":0}', '{"t":[]}', '{"t":["0"]}', '{"t":[true]}', '{"t":{"0":1}}')
HOSTS = (
    "",
    " , ",
    "b1",
    "b1:x",
    "b1:0",
    "b1:65536",
    ":9092",
    "b1 :9092",
    "http//b1:9092",
    "http:/b1:9092",
    "http://b1:9092/",
    "b1/kafka:9092",
    "'b1:9092'",
    '["b1:9092"]',
    "b1:9092;b2:9092",
)

# fmt: off
KINDS: dict[Callable[[str], Any], tuple[str, tuple[str, ...], str]] = {
    values.host_ports: ("b1:9092,b2:9092", HOSTS, "host:port"),
    non_blank: ("a-name", ("", "  "), "not empty"),
    values.wire_name: ("a-name", ("", "  "), "not empty"),
    values.optional_wire_name: ("a-name", (), "not empty"),
    values.client_id: ("a-name", (), "not empty"),
    values.instance_id: ("host-1", ("", "a b", "..", "x" * 250), "name"),
    values.topic_names: ("a,b", ("", " , ", "a b", "..", "x" * 250), "topic names"),
    values.topic_pattern: ("orders-.*", ("", "orders-[", "(", "*"), "regular expression"),
    values.boolean: ("true", ("", "yes", "1", "on", "t"), "true or false"),
    values.byte_string: ("10g", ("", "0", "-1", "1.5g", "10 g", "g", "10gib", "0k"), "for example 10g"),
    values.positive_count: ("1000", ("", "0", "-1", "1.5", "1e3", "ten", "0x10", "1_000"), f"from 1 to {LONGEST}"),
    values.byte_size: ("65536", ("", "-1", "1m", LARGE), "from 0 to 2147483647"),
    values.socket_buffer_size: ("65536", ("", "0", "-2", "64k", LARGE), "-1 for the operating system"),
    values.byte_count: ("1", ("", "-1", "1k", LARGE), "from 0 to 2147483647"),
    values.retry_count: ("3", ("", "-1", "3.0", "three"), f"from 0 to {LONGEST}"),
    values.milliseconds: ("45000", ("", "0", "-1", "45s", "1.5", LARGE), "milliseconds, from 1 to 2147483647"),
    values.long_milliseconds: ("45000", ("", "0", "-1", "45s", "1.5"), f"from 1 to {LONGEST}"),
    values.wait: ("45000", ("", "-1", "45s", "1.5", LARGE), "milliseconds, from 0 to 2147483647"),
    values.long_wait: ("45000", ("", "-1", "45s", "1.5"), f"from 0 to {LONGEST}"),
    values.idle_time: ("45000", ("", "0", "-2", "45s", "1.5"), "-1 for no limit, or a whole number of milliseconds"),
    values.duration: ("15m", ("", "5 minutes", "-1s", "2.5s", "m", "15 parsecs"), "for example 15m"),
    values.interval: ("10 minutes", ("", "5", "-1s", "2.5 minutes", "10 parsecs", "minutes"), "for example 10 minutes"),
    values.positive_interval: ("30s", ("", "30", "0s", "-1s", "2.5 minutes", "parsecs"), "for example 30s"),
    values.group_protocol: ("consumer", ("", "kip-848", "share"), "classic or consumer"),
    values.isolation_level: ("read_committed", ("", "committed", "READ-COMMITTED"), "committed or read_uncommitted"),
    values.skip_repeat_or_fail: ("repeat", ("", "ignore", "true"), "skip, repeat or fail"),
    values.warn_or_fail: ("fail", ("", "ignore", "true"), "warn or fail"),
    values.importable_function: ("json:loads", ("", "json", "json:", "no_module:f", "json:nothing"), "module:function"),
    values.port_range: ("40000-40099", ("", "40000", "0-10", "10-5", "1-65536", "a-b"), "for example 40000-40099"),
    values.dns_lookup: ("use_all_dns_ips", ("", "default", "all"), "use_all_dns_ips or resolve_canonical"),
    values.partitions_json: ('{"t":[0]}', ASSIGN, 'JSON of topics and their partitions, for example {"orders": [0, 1'),
    parse_end: ("latest", ("", "earliest", "{}"), "latest or JSON"),
    parse_timestamp_strategy: ("latest", ("", "earliest"), "error or latest"),
    parse_start: ("earliest", ("", "newest", "-2"), "earliest, latest, committed or JSON"),
    parse_fallback: ("fail", ("", "committed", "error"), "earliest, latest or fail"),
    values.assignor_names: ("range,roundrobin", ("", "rang", ","), "range, roundrobin"),
}
"""Parser -> a good text, bad texts, and a part of the fix in the error."""

TIME = ("0", ("", "-1", "2025-01-01"), "a whole number of milliseconds")
TIMES = ('{"t":{"0":0}}', ("", "0", '{"t":{"0":-1}}'), "JSON with milliseconds")
BY_NAME = {"startingTimestamp": TIME, "endingTimestamp": TIME,
           "startingOffsetsByTimestamp": TIMES, "endingOffsetsByTimestamp": TIMES}
"""The same for options with their own parser."""

NAMES = {non_blank, values.wire_name, values.optional_wire_name, values.client_id, values.instance_id,
         values.topic_names, values.topic_pattern, values.importable_function, values.host_ports,
         values.partitions_json, values.assignor_names}
"""Parsers of texts whose case matters."""
# fmt: on

ANOTHER: dict[Callable[[str], Any], str] = {
    values.boolean: "false",
    values.byte_count: "100000",
    values.dns_lookup: "resolve_canonical_bootstrap_servers_only",
    values.duration: "7m",
    values.milliseconds: "20000",
}
"""A second good text of parsers whose first one is the default of an option."""

VALUES = [option for option in OPTIONS if not option.name.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl."))]
"""test_security_options.py tests the security options, which need files and other options."""

ONLY_WITH = {
    "startingOffsetsFallback": {"startingOffsets": "committed"},
    "kafka.group.remote.assignor": {"kafka.group.protocol": "consumer"},
}
WITHOUT = {"subscribePattern": "subscribe", "assign": "subscribe"}


def others(option: Option) -> dict[str, str]:
    """The other options that this option needs."""
    left_out = {option.name, WITHOUT.get(option.name)}
    return {key: text for key, text in GOOD.items() if key not in left_out} | ONLY_WITH.get(option.name, {})


def error(given: dict[str, str]) -> tuple[str, str]:
    """What happened and the action of the error for these options."""
    try:
        parse_options(given)
    except OptionError as raised:
        return ("it shows a secret", "") if "s3cret" in str(raised) else (raised.happened, raised.action)
    return "no error", ""


def test_names_are_read_in_any_case_and_values_with_blanks_around_them() -> None:
    for option in VALUES:
        good, _, _ = BY_NAME.get(option.name) or KINDS[option.parse]
        expected = parse_options(others(option) | {option.name: good})
        written = [{change(option.name): good} for change in (str.lower, str.upper, str.swapcase, str.title)]
        if option.parse is not values.topic_pattern:
            written.append({option.name: f" \t{good}\n"})
        assert [each for each in written if parse_options(others(option) | each) != expected] == []
    assert parse_options(PATTERN | {"subscribePattern": " orders$"}).group.subscription.pattern == " orders$"


def test_each_option_sets_a_field_of_its_own() -> None:
    for option in (each for each in VALUES if each.name not in {*GOOD, *WITHOUT}):
        base = PATTERN if option.name == "includeInternalTopics" else others(option)
        field = attrgetter(option.place)
        default = field(parse_options(base))
        good, _, _ = BY_NAME.get(option.name) or KINDS[option.parse]
        texts = [each for each in (good, ANOTHER.get(option.parse)) if each is not None]
        found = [(text, field(parse_options(base | {option.name: text}))) for text in texts]
        assert any(value not in (default, None) for _, value in found), f"{option.name}: {found}, default {default}"
    places = [option.place for option in OPTIONS]
    assert sorted(places) == sorted(set(places))


def test_words_are_read_in_any_case() -> None:
    for kind in KINDS.keys() - NAMES:
        good, _, _ = KINDS[kind]
        assert kind(good.lower()) == kind(good.upper()) == kind(good.title()) == kind(good), kind


def test_the_error_for_a_bad_value_has_the_name_the_value_and_the_fix() -> None:
    for option in VALUES:
        _, bad, fix = BY_NAME.get(option.name) or KINDS[option.parse]
        for text in bad:
            happened, action = error(others(option) | {option.name.upper(): text})
            assert happened == f"Option '{option.name}' is {text!r}."
            assert action.startswith("It must be ")
            assert fix in action


def test_the_error_for_a_mistyped_name_suggests_the_option() -> None:
    for name in (option.name for option in OPTIONS):
        half = len(name) // 2
        left, middle, right = name[:half], name[half], name[half + 1 :]
        dropped, swapped = left + right, left + right[0] + middle + right[1:]
        with_underscores, with_prefix = name.removeprefix("kafka.").replace(".", "_"), f"kafka.{name}"
        mistyped = (dropped, swapped, with_underscores, with_prefix)
        for typed in (each for each in mistyped if each.lower() != name.lower()):
            unknown = f"Option '{typed}' is unknown."
            assert error(GOOD | {typed: "s3cret"}) == (unknown, f"Did you mean '{name}'?")


def test_the_error_for_an_unlike_name_is_short_and_names_the_page() -> None:
    for name in ("qqqqqqqqqqqq", "x", "kafka.", "", "kafka.retention.time", "q" * 10_000):
        happened, action = error(GOOD | {name: "s3cret"})
        assert happened.endswith("is unknown.")
        assert len(happened) < 350
        assert action == "Remove it, or choose one of the options in docs/options.md."


def test_an_unsupported_option_is_an_error_in_any_spelling() -> None:
    for name, family in UNSUPPORTED.items():
        for written in (name, name.upper(), f"kafka.{name}", name.replace(".", "_")):
            happened, action = error(GOOD | {written: "s3cret"})
            assert f"'{written}' is not supported: " in happened
            assert action == family.action


def test_the_error_for_an_option_of_other_clients_names_the_alternative() -> None:
    for key, instead in (
        ("enable.auto.commit", "Remove it"),
        ("auto_commit_interval_ms", "trigger"),
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("zk_hosts", "kafka.bootstrap.servers"),
        ("commitOffsets", "format('kafka')"),
        ("kafka.exclude.internal.topics", "includeInternalTopics"),
        ("path", "subscribe"),
    ):
        happened, action = error(GOOD | {key: "s3cret"})
        assert f"'{key}' is not supported" in happened
        assert instead in action


def test_no_unsupported_name_is_an_option_and_every_alternative_is_one() -> None:
    known = {option.name.lower() for option in OPTIONS}
    assert not known & {prefix + name for name in UNSUPPORTED for prefix in ("", "kafka.")}
    named = {name for family in UNSUPPORTED.values() for name in re.findall(r"'([A-Za-z.]{6,})'", family.action)}
    assert {name.lower() for name in named - {"string"}} <= known


CONNECTION_STRING = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=All;SharedAccessKey=s3cret="
PEM = "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        CONNECTION_STRING,
        PEM,
        PEM.replace(" ", "\t"),
        PEM[1:],
        PEM.lower(),
        base64.b64encode(PEM.encode()).decode(),
        "https://alice:s3cret@broker1/",
        "Bearer s3cret",
        "apiKey=s3cret",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "kafka.bootstrap.servers",
        "kafka.sasl.mechanism",
        "includeHeaders",
        "kafka.ssl.endpoint.identification.algorithm",
    ],
)
def test_no_error_shows_a_secret_in_the_wrong_option(name: str, text: str) -> None:
    happened, action = error(GOOD | {name: text})
    assert "not shown" in happened
    assert "s3cret" not in happened + action
    assert text not in happened + action


@pytest.mark.parametrize("name", ["kafka.ssl.keystore.location", "kafka.ssl.truststore.location"])
@pytest.mark.parametrize(
    ("text", "says"),
    [(PEM, "PEM text"), (PEM[1:], "PEM text"), (base64.b64encode(PEM.encode()).decode(), "the base64 of PEM text")],
)
def test_a_key_in_the_place_of_its_path_is_not_shown(name: str, text: str, says: str) -> None:
    happened, action = error(GOOD | {"kafka.security.protocol": "SSL", name: text})
    assert happened == f"Option '{name}' contains {says}, which is not shown."
    assert "kafka.ssl.keystore.key" in action
    assert text not in str(happened) + action
