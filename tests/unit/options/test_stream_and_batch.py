"""The same options in a stream and in a batch query."""

from __future__ import annotations

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition
from spark_group_source.options import settings, table
from spark_group_source.options.offsets import AtTimestamp, Earliest, FromCommitted, Latest, SpecificOffsets
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.settings import SourceOptions

A = TopicPartition("t", 0)
JSON = '{"t":{"0":7}}'
COMMITTED, FALLBACK = {"startingOffsets": "committed"}, "startingOffsetsFallback"
EXACT = SpecificOffsets({A: 7}, "startingOffsets")


def parsed(group: str = "g", **given: str) -> SourceOptions:
    options = {"kafka.bootstrap.servers": "b1:9092", "subscribe": "t"} | ({"kafka.group.id": group} if group else {})
    return parse_options(options | given)


@pytest.mark.parametrize(
    ("given", "stream", "batch"),
    [
        ({}, Latest(), Earliest()),
        ({"startingOffsets": "earliest"}, Earliest(), Earliest()),
        ({"startingOffsets": JSON}, EXACT, EXACT),
        # A stream always prefers commits, so committed only sets its fallback.
        (COMMITTED, FromCommitted(Latest()), FromCommitted(Earliest())),
        (COMMITTED | {FALLBACK: "earliest"}, FromCommitted(Earliest()), FromCommitted(Earliest())),
        (COMMITTED | {FALLBACK: "latest"}, FromCommitted(Latest()), FromCommitted(Latest())),
        (COMMITTED | {FALLBACK: "fail"}, FromCommitted(None), FromCommitted(None)),
    ],
)
def test_the_default_start_is_latest_in_a_stream_and_earliest_in_a_batch_read(
    given: dict[str, str], stream: object, batch: object
) -> None:
    assert settings.stream_start(parsed(**given)) == stream
    assert settings.batch_start(parsed(**given)) == batch


def test_one_time_precedes_times_by_partition_which_precede_offsets() -> None:
    offsets = {"startingOffsets": JSON, "endingOffsets": JSON}
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {"startingTimestamp": "3", "endingTimestamp": "4"}
    of_all = parsed(**offsets, **times, **time)
    of_two = parsed(**offsets, **times)
    assert settings.batch_start(of_all) == settings.stream_start(of_all) == AtTimestamp(3, "startingTimestamp", False)
    assert settings.batch_end(of_all) == AtTimestamp(4, "endingTimestamp", True)
    assert settings.batch_start(of_two) == AtTimestamp({A: 5}, "startingOffsetsByTimestamp", False)
    assert settings.batch_end(of_two) == AtTimestamp({A: 6}, "endingOffsetsByTimestamp", True)
    assert settings.batch_end(parsed(**offsets)) == SpecificOffsets({A: 7}, "endingOffsets")
    assert settings.batch_end(parsed()) == Latest()


def test_the_timestamp_strategy_applies_to_starting_times() -> None:
    for given in ({"startingTimestamp": "3"}, {"startingOffsetsByTimestamp": '{"t":{"0":3}}'}):
        start = settings.stream_start(parsed(**given, startingOffsetsByTimestampStrategy="latest"))
        assert isinstance(start, AtTimestamp)
        assert start.or_latest


def test_an_end_in_a_stream_is_an_error() -> None:
    ends = ("endingOffsets", "latest"), ("endingOffsets", JSON), ("endingOffsetsByTimestamp", JSON)
    for option, value in (*ends, ("endingTimestamp", "7")):
        with pytest.raises(OptionError, match=f"'{option}' is set, and a stream has no end.*availableNow.*spark.read"):
            settings.check_stream(parsed(**{option: value}))


def test_a_group_id_is_required_in_a_stream_and_to_start_at_committed() -> None:
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: a stream"):
        settings.check_stream(parsed(group=""))
    settings.check_stream(parsed())
    settings.check_batch(parsed(group=""))
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: 'startingOffsets' is committed"):
        settings.check_batch(parsed(group="", startingOffsets="committed"))
    settings.check_batch(parsed(startingOffsets="committed"))


def test_a_batch_read_from_latest_or_to_earliest_is_an_error() -> None:
    for name, value, says in (
        ("startingOffsets", "latest", "'startingOffsets' is latest"),
        ("startingOffsets", '{"t":{"0":7,"1":-1}}', "'startingOffsets' is latest"),
        ("endingOffsets", '{"t":{"0":7,"1":-2}}', "'endingOffsets' contains -2"),
    ):
        with pytest.raises(OptionError, match=says):
            settings.check_batch(parsed(**{name: value}))
        settings.check_batch(parsed(**{name: value}, startingTimestamp="3", endingTimestamp="4"))


def test_ignored_options_have_their_names_from_the_table() -> None:
    assert table.ignored_in_batch_queries(["subscribe", "maxoffsetspertrigger", "KAFKA.SESSION.TIMEOUT.MS"]) == [
        "maxOffsetsPerTrigger",
        "kafka.session.timeout.ms",
    ]
