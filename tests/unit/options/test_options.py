"""Options: each error shows the bad value and says what to write instead. Defaults derive from what the user sets."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import MAX_OFFSET
from spark_group_source.options import values
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.options.table import OPTIONS
from spark_group_source.wire.wire_options import WireOptions

GOOD = {"kafka.bootstrap.servers": "b1:9092", "kafka.group.id": "g", "subscribe": "t"}
TOPICLESS = {key: text for key, text in GOOD.items() if key != "subscribe"}
PATTERN = TOPICLESS | {"subscribePattern": "t.*"}
ASSIGNED = TOPICLESS | {"assign": '{"b": [1], "a": [2, 0]}'}

SESSION, BEAT = "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms"
WAIT, REQUEST, POLL = "kafka.fetch.max.wait.ms", "kafka.request.timeout.ms", "kafkaConsumer.pollTimeoutMs"
ASSIGNOR, STRATEGY = "kafka.group.remote.assignor", "kafka.partition.assignment.strategy"
LEAST, MOST = "minOffsetsPerTrigger", "maxOffsetsPerTrigger"


def test_three_options_are_enough_and_the_others_have_defaults() -> None:
    group = GroupSettings("g", Subscription(("t",)), WireOptions((("b1", 9092),)))
    assert parse_options(GOOD) == SourceOptions(group)


def test_lists_drop_blanks_and_duplicates() -> None:
    parsed = parse_options(GOOD | {"subscribe": " a, b ,,a", "kafka.bootstrap.servers": "b1:1, [::1]:2,SSL://b3:3,"})
    assert parsed.group.subscription.topics == ("a", "b")
    assert parsed.wire.bootstrap_servers == (("b1", 1), ("::1", 2), ("b3", 3))


def test_a_missing_required_option_is_named() -> None:
    with pytest.raises(OptionError, match="'kafka.bootstrap.servers' is missing"):
        parse_options({key: value for key, value in GOOD.items() if key != "kafka.bootstrap.servers"})


def test_exactly_one_topic_option_is_required() -> None:
    with pytest.raises(OptionError, match="No option names a topic.*subscribePattern"):
        parse_options(TOPICLESS)
    for given, first, second in (
        (GOOD | PATTERN, "subscribe", "subscribePattern"),
        (GOOD | ASSIGNED, "subscribe", "assign"),
        (PATTERN | ASSIGNED, "subscribePattern", "assign"),
    ):
        with pytest.raises(OptionError, match=f"Options '{first}' and '{second}' are set.*exactly one"):
            parse_options(given)
    assert parse_options(PATTERN).group.subscription.pattern == "t.*"


def test_assigned_partitions_are_json_and_a_repeated_topic_adds_partitions() -> None:
    parsed = parse_options(ASSIGNED | {"assign": '{"b": [1], "a": [2, 0], "b": [3]}'}).group.subscription
    assert parsed.partitions == {("a", 0), ("a", 2), ("b", 1), ("b", 3)}
    assert parsed.topics == ("a", "b")


def test_member_options_with_assign_are_an_error() -> None:
    member = {"kafka.group.instance.id": "one", STRATEGY: "range", SESSION: "45000", "kafka.max.poll.interval.ms": "9"}
    for name, value in member.items():
        with pytest.raises(OptionError, match=f"'assign' and '{name}' are set.*Remove the other options"):
            parse_options(ASSIGNED | {name: value})


NO_DURATIONS = ("30", "0s", "0 minutes", "-5s", "1.5 minutes", "soon", "", "3 months", "PT30S")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kafka.bootstrap.servers", "b1:9092;b2:9092", "separated by commas"),
        ("kafka.bootstrap.servers", "::1:9092", "[::1]:9092"),
        ("kafka.bootstrap.servers", "http//b1:9092", "and no URLs"),
        ("kafka.bootstrap.servers", "http://b1:9092/kafka", "and no URLs"),
        ("subscribe", "a,b c", "'b c'"),
        ("subscribe", "orders-.*", "set 'subscribePattern' instead"),
        ("subscribePattern", "orders-[", "unterminated"),
        ("subscribePattern", "orders-[[:digit:]]+", "Possible nested set"),
        ("assign", '{"t": [0, -1]}', "topic 't' has -1"),
        ("assign", '{"a b": [0]}', "'a b'"),
        ("endingOffsetsByTimestamp", '{"t":{"0":-1}}', "-1 is not a whole number from 0 to"),
        ("maxBytesPerTrigger", "8192p", "less than 8192p"),
        *(("targetBatchDuration", bad, "a duration above 0 with a unit, for example 30s") for bad in NO_DURATIONS),
        ("startingOffsetsCallback", "no_such_module:f", "No module named"),
        ("startingOffsetsCallback", "json:no_such_function", "no function 'no_such_function'"),
        ("kafka.group.instance.id", "x" * 250, "at most 249"),
        ("kafka.source.port", "40000", "because a query and its tasks need several connections"),
    ],
)
def test_the_error_for_a_bad_value_says_what_is_wrong_with_it(name: str, value: str, says: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(GOOD | {name: value})
    assert f"'{name}' is {value!r}" in str(raised.value)
    assert says in str(raised.value)


DURATIONS: dict[str, float] = {"15m": 900, "90s": 90, "1500": 1.5, " 2h ": 7200, "1D": 86400, "3min": 180}
INTERVALS: dict[str, float] = {
    "1.5 seconds": 1.5,
    ".5s": 0.5,
    "+10 seconds": 10,
    "10 minutes": 600,
    "1 minute 30 seconds": 90,
    "interval 2 hours": 7200,
}
INTERVALS |= {"30s": 30, "500 ms": 0.5, "1D": 86400, "1 week": 604800, "2000 microseconds": 0.002}
SIZES = {"1": 1, "1500b": 1500, "64k": 2**16, "64KB": 2**16, "512m": 2**29, "1gb": 2**30, "10g": 10 * 2**30}
SIZES |= {"2tb": 2**41, " 1p ": 2**50, "8191p": 8191 * 2**50}


def test_durations_intervals_and_byte_sizes_are_read_as_spark_reads_them() -> None:
    for option, field, read in (
        ("maxTriggerDelay", "max_trigger_delay", DURATIONS),
        ("minBatchInterval", "min_batch_interval", INTERVALS),
        (
            "targetBatchDuration",
            "target_batch_duration",
            INTERVALS | {"100ms": 0.1, "1h": 3600, "1m 30s": 90, "1.5 seconds": 1.5},
        ),
        ("maxBytesPerTrigger", "max_bytes_per_trigger", SIZES),
    ):
        assert {text: getattr(parse_options(GOOD | {option: text}), field) for text in read} == read


STARTS_AT_COMMITTED = {"startingOffsets": "committed"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({LEAST: "11", MOST: "10"}, f"'{LEAST}' is 11, more than '{MOST}'"),
        ({SESSION: "6000", BEAT: "6000"}, f"'{BEAT}' is 6000, and '{SESSION}' is 6000"),
        ({WAIT: "30000", REQUEST: "30000"}, f"'{WAIT}' is 30000.*'{REQUEST}' is 30000.*raise"),
        ({"startingOffsetsFallback": "fail"}, "'startingOffsets' is not set to committed.*to committed.*Or remove"),
        (
            {"startingOffsets": "earliest", "startingOffsetsFallback": "latest"},
            "'startingOffsets' is not set to committed",
        ),
        (STARTS_AT_COMMITTED | {"resetOffsetsOnStart": "true"}, "Set 'startingOffsets' to the new start"),
        (STARTS_AT_COMMITTED | {"startingTimestamp": "1"}, "'startingTimestamp' is set.*Remove one of them"),
    ],
)
def test_options_that_contradict_each_other_are_an_error(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_options(GOOD | given)


@pytest.mark.parametrize(
    ("given", "without_effect", "says"),
    [
        ({SESSION: "6000"}, SESSION, "group.consumer.session.timeout.ms"),
        ({BEAT: "1000"}, BEAT, "Remove"),
        ({STRATEGY: "range"}, STRATEGY, "remote.assignor"),
        ({"kafka.group.protocol": "classic", ASSIGNOR: "range"}, ASSIGNOR, f"'{STRATEGY}'"),
    ],
)
def test_options_of_the_other_group_protocol_are_refused(given: dict[str, str], without_effect: str, says: str) -> None:
    options = GOOD | {"kafka.group.protocol": "consumer"} | given
    chosen = options["kafka.group.protocol"]
    happened = f"Option '{without_effect}' has no effect with 'kafka.group.protocol' {chosen}\\..*{says}"
    with pytest.raises(OptionError, match=happened):
        parse_options(options)
    assert not parse_options(GOOD | {"kafka.group.protocol": "classic", SESSION: "6000"}).group.consumer_protocol


def test_several_options_without_effect_are_named_together() -> None:
    given = {"kafka.group.protocol": "consumer", STRATEGY: "range", SESSION: "6000", BEAT: "1000"}
    with pytest.raises(OptionError, match=f"Options '{STRATEGY}', '{SESSION}' and '{BEAT}' have no effect"):
        parse_options(GOOD | given)


LARGEST = 2**31 - 1
NUMBERS: dict[Callable[[str], Any], tuple[int, int]] = {
    values.milliseconds: (1, LARGEST - 1),  # some need another that is longer
    values.long_milliseconds: (1, MAX_OFFSET),
    values.wait: (0, LARGEST - 1),
    values.long_wait: (0, MAX_OFFSET),
    values.idle_time: (1, MAX_OFFSET),
    values.duration: (0, MAX_OFFSET),
    values.byte_size: (0, LARGEST),
    values.byte_count: (0, LARGEST),
    values.socket_buffer_size: (1, LARGEST),
    values.positive_count: (1, MAX_OFFSET),
    values.retry_count: (0, MAX_OFFSET),
}
"""The minimum and maximum of each parser of numbers."""


def test_a_number_may_have_any_number_of_leading_zeros() -> None:
    """Python converts no more than 4,300 digits, and says so in words of its own."""
    zeros = "0" * 5000
    assert parse_options(GOOD | {"maxOffsetsPerTrigger": f"+{zeros}7"}).max_offsets_per_trigger == 7
    for number in (zeros, "9" * 5000, "1" + zeros):
        with pytest.raises(OptionError, match="It must be a whole number, from 1 to 9223372036854775807"):
            parse_options(GOOD | {"maxOffsetsPerTrigger": number})


SESSION_PLACES = ("group.heartbeat_interval", "group.session_timeout")
FETCH = ("fetch.max_wait", "wire.request_timeout", "fetch.poll_timeout")
BACKOFFS = {
    "kafka.retry.backoff": ("wire.retry_backoff", "wire.retry_backoff_max"),
    "kafka.reconnect.backoff": ("wire.reconnect_backoff", "wire.reconnect_backoff_max"),
    "kafka.socket.connection.setup.timeout": ("wire.connect_timeout", "wire.connect_timeout_max"),
}


def test_a_single_option_accepts_and_keeps_each_valid_value() -> None:
    for option in OPTIONS:
        if option.parse in NUMBERS and not option.name.startswith("kafka.sasl."):
            least, most = NUMBERS[option.parse]
            steps = [digits * 10**zeros for zeros in range(18) for digits in (1, 2, 3, 5, 9)]
            for number in (least, least + 1, most - 1, most, *(each for each in steps if least < each < most)):
                parsed = parse_options(GOOD | {option.name: str(number)})
                assert attrgetter(option.place)(parsed) == option.parse(str(number)), f"{option.name} {number}"
                assert parsed.group.revocation_timeout > 0, f"{option.name} {number}"


@pytest.mark.parametrize(
    ("given", "places", "seconds"),
    [
        ({}, SESSION_PLACES, (3.0, 45.0)),
        ({SESSION: "6000"}, SESSION_PLACES, (2.0, 6.0)),
        ({SESSION: "9000"}, SESSION_PLACES, (3.0, 9.0)),
        ({SESSION: "120000"}, SESSION_PLACES, (3.0, 120.0)),
        ({BEAT: "1000"}, SESSION_PLACES, (1.0, 45.0)),
        ({BEAT: "20000"}, SESSION_PLACES, (20.0, 60.0)),
        ({BEAT: "5999", SESSION: "6000"}, SESSION_PLACES, (5.999, 6.0)),
        ({}, FETCH, (0.5, 30.0, 120.0)),
        ({WAIT: "30000"}, FETCH, (30.0, 60.0, 120.0)),
        ({WAIT: "30000", REQUEST: "60000"}, FETCH, (30.0, 60.0, 120.0)),
        ({WAIT: "100000"}, FETCH, (100.0, 200.0, 200.0)),
        ({REQUEST: "400"}, FETCH, (0.2, 0.4, 120.0)),
        ({REQUEST: "400", POLL: "200"}, FETCH, (0.1, 0.4, 0.2)),
        *(({f"{name}.ms": "60000"}, places, (60.0, 60.0)) for name, places in BACKOFFS.items()),
        *(({f"{name}.max.ms": "10"}, places, (0.01, 0.01)) for name, places in BACKOFFS.items()),
        *(({f"{name}.ms": "5", f"{name}.max.ms": "2"}, places, (0.002, 0.002)) for name, places in BACKOFFS.items()),
    ],
)
def test_times_that_belong_together_derive_from_each_other(
    given: dict[str, str], places: tuple[str, ...], seconds: tuple[float, ...]
) -> None:
    assert attrgetter(*places)(parse_options(GOOD | given)) == seconds
