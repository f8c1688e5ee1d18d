"""Options: each error shows the bad value and says what to write instead."""

from __future__ import annotations

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.options.offsets import Earliest
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.settings import SourceOptions
from spark_group_source.options.table import OPTIONS, PARTS
from spark_group_source.wire.settings import WireOptions

GOOD = {"kafka.bootstrap.servers": "b1:9092", "kafka.group.id": "g", "subscribe": "t"}


def test_three_options_are_enough_and_the_others_have_defaults() -> None:
    group = GroupSettings("g", Subscription(("t",)), WireOptions((("b1", 9092),)))
    assert parse_options(GOOD) == SourceOptions(group)


def test_names_are_case_insensitive() -> None:
    given = {"KAFKA.bootstrap.SERVERS": "b:1", "kafka.GROUP.id": "g", "Subscribe": "t", "STARTINGOFFSETS": "Earliest"}
    assert parse_options(given).starting_offsets == Earliest()


def test_lists_drop_blanks_and_duplicates() -> None:
    parsed = parse_options(GOOD | {"subscribe": " a, b ,,a", "kafka.bootstrap.servers": "b1:1, [::1]:2,SSL://b3:3,"})
    assert parsed.group.subscription.topics == ("a", "b")
    assert parsed.wire.bootstrap_servers == (("b1", 1), ("::1", 2), ("b3", 3))


def test_a_missing_required_option_is_named() -> None:
    with pytest.raises(OptionError, match="'kafka.bootstrap.servers' is missing"):
        parse_options({key: value for key, value in GOOD.items() if key != "kafka.bootstrap.servers"})


def test_exactly_one_topic_option_is_required() -> None:
    neither = {key: value for key, value in GOOD.items() if key != "subscribe"}
    with pytest.raises(OptionError, match="No option names a topic.*subscribePattern"):
        parse_options(neither)
    ways = {"subscribePattern": "t.*", "assign": '{"t": [0]}'}
    for name, value in ways.items():
        with pytest.raises(OptionError, match=f"Options 'subscribe' and '{name}' are set.*exactly one"):
            parse_options(GOOD | {name: value})
    with pytest.raises(OptionError, match="Options 'subscribePattern' and 'assign' are set"):
        parse_options(neither | ways)
    assert parse_options(neither | {"subscribePattern": "t.*"}).group.subscription.pattern == "t.*"


ASSIGNED = {key: value for key, value in GOOD.items() if key != "subscribe"} | {"assign": '{"b": [1], "a": [2, 0]}'}


def test_assigned_partitions_are_json_and_a_repeated_topic_adds_partitions() -> None:
    parsed = parse_options(ASSIGNED | {"assign": '{"b": [1], "a": [2, 0], "b": [3]}'}).group.subscription
    assert parsed.partitions == {("a", 0), ("a", 2), ("b", 1), ("b", 3)}
    assert parsed.topics == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.group.instance.id", "one"),
        ("kafka.partition.assignment.strategy", "range"),
        ("kafka.session.timeout.ms", "45000"),
        ("kafka.heartbeat.interval.ms", "3000"),
        ("kafka.max.poll.interval.ms", "300000"),
    ],
)
def test_member_options_with_assign_are_an_error(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"'assign' and '{name}' are set.*remove the other options"):
        parse_options(ASSIGNED | {name: value})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxoffsetspertriger", "maxOffsetsPerTrigger"),
        ("kafka.groupid", "kafka.group.id"),
        ("subscribes", "subscribe"),
    ],
)
def test_the_error_for_an_unknown_option_suggests_the_nearest_name(written: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"'{written}' is unknown.*Did you mean '{meant}'"):
        parse_options(GOOD | {written: "x"})


def test_the_value_of_an_unknown_option_is_never_shown() -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(GOOD | {"kafka.sasl.pasword": "hunter2"})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kafka.bootstrap.servers", "broker1", "host:port"),
        ("kafka.bootstrap.servers", "b:0", "host:port"),
        ("kafka.bootstrap.servers", "b:99999", "host:port"),
        ("kafka.bootstrap.servers", " , ", "host:port"),
        ("kafka.bootstrap.servers", "b1:9092;b2:9092", "separated by commas"),
        ("kafka.bootstrap.servers", "b1:9092 b2:9092", "separated by commas"),
        ("kafka.bootstrap.servers", "b1 :9092", "host:port"),
        ("kafka.bootstrap.servers", "::1:9092", "[::1]:9092"),
        ("kafka.group.id", "  ", "not empty"),
        ("subscribe", ",", "topic names"),
        ("subscribe", "a,b c", "'b c'"),
        ("subscribe", "..", "'..'"),
        ("subscribe", "orders-.*", "set 'subscribePattern' instead"),
        ("subscribePattern", "orders-[", "unterminated"),
        ("subscribePattern", "", "not empty"),
        ("subscribePattern", "orders-[[:digit:]]+", "Possible nested set"),
        ("subscribePattern", "orders-[a-z&&[^x]]+", "Possible"),
        ("subscribePattern", r"\p{Alpha}+", "bad escape"),
        ("assign", "", '{"orders": [0, 1]}'),
        ("assign", "t", '{"orders": [0, 1]}'),
        ("assign", "{}", '{"orders": [0, 1]}'),
        ("assign", "[0]", '{"orders": [0, 1]}'),
        ("assign", '{"t": 0}', '{"orders": [0, 1]}'),
        ("assign", '{"t": []}', '{"orders": [0, 1]}'),
        ("assign", '{"t": ["0"]}', '{"orders": [0, 1]}'),
        ("assign", '{"t": [true]}', '{"orders": [0, 1]}'),
        ("assign", '{"t": {"0": 1}}', '{"orders": [0, 1]}'),
        ("assign", '{"t": [0, -1]}', "topic 't' has -1"),
        ("assign", '{"a b": [0]}', "'a b'"),
        ("startingOffsets", "newest", "earliest, latest, committed or JSON"),
        ("startingOffsets", '{"t":{"0":-3}}', "-3 is not a whole number of at least -2"),
        ("startingOffsetsFallback", "committed", "earliest, latest or fail"),
        ("startingOffsetsByTimestamp", "1735689600000", "JSON with milliseconds"),
        ("startingTimestamp", "2025-01-01", "for example 1735689600000"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("endingOffsets", "earliest", "latest or JSON"),
        ("endingOffsetsByTimestamp", '{"t":{"0":-1}}', "-1 is not a whole number of at least 0"),
        ("endingTimestamp", "-1", "milliseconds since 1970"),
        ("maxOffsetsPerTrigger", "0", "at least 1"),
        ("maxOffsetsPerTrigger", "-3", "at least 1"),
        ("maxOffsetsPerTrigger", "1e3", "at least 1"),
        ("maxOffsetsPerTrigger", "abc", "at least 1"),
        ("maxBytesPerTrigger", "8192p", "less than 8192p"),
        ("minOffsetsPerTrigger", "0", "at least 1"),
        ("minPartitions", "0", "at least 1"),
        ("maxRecordsPerPartition", "-1", "at least 1"),
        ("minRecordsPerTask", "0", "at least 1"),
        ("maxTriggerDelay", "15 parsecs", "15m"),
        ("startingOffsetsCallback", "no_such_module:f", "No module named"),
        ("startingOffsetsCallback", "json:no_such_function", "no function 'no_such_function'"),
        ("startingOffsetsCallback", "json", "module:function"),
        ("offsetCommit.numRetries", "-1", "at least 0"),
        ("offsetCommit.timeoutMs", "0", "milliseconds"),
        ("onCommitFailure", "ignore", "warn or fail"),
        ("includeHeaders", "yes", "true or false"),
        ("kafka.group.instance.id", "host 1", "letters, digits"),
        ("kafka.group.instance.id", "x" * 250, "at most 249"),
        ("kafka.isolation.level", "committed", "read_committed or read_uncommitted"),
        ("kafka.partition.assignment.strategy", "rang", "range, roundrobin"),
        ("kafka.session.timeout.ms", "45s", "milliseconds"),
    ],
)
def test_the_error_for_a_bad_value_shows_it_with_the_fix(name: str, value: str, says: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_options(GOOD | {name: value})
    assert f"'{name}' is {value!r}" in str(raised.value)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("90s", 90), ("1500", 1.5), (" 2h ", 7200), ("1D", 86400), ("3min", 180)]
)
def test_durations_are_read_as_spark_reads_them(text: str, seconds: float) -> None:
    assert parse_options(GOOD | {"maxTriggerDelay": text}).max_trigger_delay == seconds


def test_a_minimum_above_the_maximum_of_a_batch_is_an_error() -> None:
    with pytest.raises(OptionError, match="'minOffsetsPerTrigger' is 11, more than 'maxOffsetsPerTrigger'"):
        parse_options(GOOD | {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"})


def test_a_heartbeat_interval_of_a_whole_session_is_an_error() -> None:
    with pytest.raises(
        OptionError, match=r"'kafka.heartbeat.interval.ms' is 6000, and 'kafka.session.timeout.ms' is 6000"
    ):
        parse_options(GOOD | {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "6000"})
    assert parse_options(GOOD | {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "5999"})


def test_a_fetch_wait_of_a_whole_request_timeout_is_an_error() -> None:
    with pytest.raises(
        OptionError, match=r"'kafka.fetch.max.wait.ms' is 30000.*'kafka.request.timeout.ms' is 30000.*raise"
    ):
        parse_options(GOOD | {"kafka.fetch.max.wait.ms": "30000", "kafka.request.timeout.ms": "30000"})
    assert parse_options(GOOD | {"kafka.fetch.max.wait.ms": "30000", "kafka.request.timeout.ms": "60000"})


def test_a_first_backoff_above_the_maximum_is_the_maximum() -> None:
    parsed = parse_options(GOOD | {"kafka.retry.backoff.ms": "5000", "kafka.retry.backoff.max.ms": "2000"}).wire
    assert (parsed.retry_backoff, parsed.retry_backoff_max) == (2.0, 2.0)


def test_backoff_options_reach_the_member_and_all_connections() -> None:
    parsed = parse_options(GOOD | {"kafka.retry.backoff.ms": "20", "kafka.retry.backoff.max.ms": "300"})
    for settings in (parsed.group.wire, parsed.wire):
        assert (settings.retry_backoff, settings.retry_backoff_max) == (0.02, 0.3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsetsFallback": "fail"}, "'startingOffsets' is not committed.*Remove it.*to committed"),
        ({"startingOffsets": "earliest", "startingOffsetsFallback": "latest"}, "'startingOffsets' is not committed"),
        ({"startingOffsets": "committed", "resetOffsetsOnStart": "true"}, "Set 'startingOffsets' to the new start"),
        ({"startingOffsets": "committed", "startingTimestamp": "1"}, "'startingTimestamp' is set.*Remove one of them"),
        (
            {"startingOffsets": "committed", "startingOffsetsByTimestamp": '{"t":{"0":1}}'},
            "'startingOffsetsByTimestamp' is set",
        ),
    ],
)
def test_options_that_contradict_starting_at_committed_are_an_error(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_options(GOOD | given)


WITHOUT_OPTION = {
    "group", "fetch", "wire.tls", "wire.sasl", "group.subscription", "group.wire", "oauth.window",  # parts
    "security.tls", "security.oauth", "security.given",
    "wire.consumer_protocol",  # of the driver's connections only
    "group.coordinator",  # state
    "tls.in_login_line", "oauth.tls", "oauth.extensions",  # from the JAAS config
}  # fmt: skip


def test_every_option_has_its_own_field_and_every_other_field_a_reason() -> None:
    fields = {f"{part}.{name}".strip(".") for part, kind in PARTS.items() for name in kind.__dataclass_fields__}
    places = [option.place for option in OPTIONS]
    assert sorted([*places, *WITHOUT_OPTION]) == sorted(fields)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 minutes", 600),
        ("1 minute 30 seconds", 90),
        ("interval 2 hours", 7200),
        ("30s", 30),
        ("500 ms", 0.5),
        ("1D", 86400),
    ],
)
def test_intervals_are_read_as_spark_reads_those_of_triggers(text: str, seconds: float) -> None:
    assert parse_options(GOOD | {"minBatchInterval": text}).min_batch_interval == seconds


@pytest.mark.parametrize(
    ("given", "without_effect", "says"),
    [
        ({"kafka.session.timeout.ms": "6000"}, "'kafka.session.timeout.ms'", "group.consumer.session.timeout.ms"),
        ({"kafka.heartbeat.interval.ms": "1000"}, "'kafka.heartbeat.interval.ms'", "Remove"),
        ({"kafka.partition.assignment.strategy": "range"}, "'kafka.partition.assignment.strategy'", "remote.assignor"),
        (
            {"kafka.group.protocol": "classic", "kafka.group.remote.assignor": "range"},
            "'kafka.group.remote.assignor'",
            "'kafka.partition.assignment.strategy'",
        ),
        ({"kafka.group.protocol": "classic", "kafka.session.timeout.ms": "6000"}, "", ""),
    ],
)
def test_options_of_the_other_group_protocol_are_refused(given: dict[str, str], without_effect: str, says: str) -> None:
    options = GOOD | {"kafka.group.protocol": "consumer"} | given
    if not without_effect:
        assert not parse_options(options).group.consumer_protocol
        return
    with pytest.raises(OptionError) as raised:
        parse_options(options)
    assert f"Option {without_effect} has no effect with the protocol {options['kafka.group.protocol']}." in str(
        raised.value
    )
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1500b", 1500),
        ("64k", 2**16),
        ("64KB", 2**16),
        ("512m", 2**29),
        ("1gb", 2**30),
        ("10g", 10 * 2**30),
        ("2tb", 2**41),
        (" 1p ", 2**50),
        ("8191p", 8191 * 2**50),
    ],
)
def test_byte_sizes_are_read_as_spark_reads_them(text: str, size: int) -> None:
    assert parse_options(GOOD | {"maxBytesPerTrigger": text}).max_bytes_per_trigger == size
