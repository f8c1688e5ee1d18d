"""What the same options mean in a stream and in a bounded read."""

from __future__ import annotations

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition
from spark_group_source.options import modes
from spark_group_source.options.bounds import AtTime, Committed, Earliest, Exact, Latest
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS, SourceOptions

A = TopicPartition("t", 0)
JSON = '{"t":{"0":7}}'
EXACT = Exact({A: 7}, "startingOffsets")


def parsed(group: str = "g", **given: str) -> SourceOptions:
    options = {"kafka.bootstrap.servers": "b1:9092", "subscribe": "t"} | ({"kafka.group.id": group} if group else {})
    return parse_options(options | given)


@pytest.mark.parametrize(
    ("given", "stream", "bounded"),
    [
        ({}, Latest(), Earliest()),
        ({"startingOffsets": "earliest"}, Earliest(), Earliest()),
        ({"startingOffsets": JSON}, EXACT, EXACT),
        # In a stream commits go first whatever is given, so that committed is its fallback alone.
        ({"startingOffsets": "committed"}, Committed(Latest()), Committed(Earliest())),
        (
            {"startingOffsets": "committed", "startingOffsetsFallback": "earliest"},
            Committed(Earliest()),
            Committed(Earliest()),
        ),
        (
            {"startingOffsets": "committed", "startingOffsetsFallback": "latest"},
            Committed(Latest()),
            Committed(Latest()),
        ),
        ({"startingOffsets": "committed", "startingOffsetsFallback": "fail"}, Committed(None), Committed(None)),
    ],
)
def test_a_stream_starts_at_the_end_and_a_bounded_read_at_the_beginning_unless_told(
    given: dict[str, str], stream: object, bounded: object
) -> None:
    assert modes.stream_start(parsed(**given)) == stream
    assert modes.bounded_start(parsed(**given)) == bounded


def test_one_time_goes_before_times_by_partition_and_these_before_offsets() -> None:
    offsets = {"startingOffsets": JSON, "endingOffsets": JSON}
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {"startingTimestamp": "3", "endingTimestamp": "4"}
    of_all = parsed(**offsets, **times, **time)
    of_two = parsed(**offsets, **times)
    assert modes.bounded_start(of_all) == modes.stream_start(of_all) == AtTime(3, "startingTimestamp", False)
    assert modes.bounded_end(of_all) == AtTime(4, "endingTimestamp", True)
    assert modes.bounded_start(of_two) == AtTime({A: 5}, "startingOffsetsByTimestamp", False)
    assert modes.bounded_end(of_two) == AtTime({A: 6}, "endingOffsetsByTimestamp", True)
    assert modes.bounded_end(parsed(**offsets)) == Exact({A: 7}, "endingOffsets")
    assert modes.bounded_end(parsed()) == Latest()


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_the_strategy_applies_to_starting_times(option: str) -> None:
    value = "3" if option == "startingTimestamp" else '{"t":{"0":3}}'
    start = modes.stream_start(parsed(**{option: value, "startingOffsetsByTimestampStrategy": "latest"}))
    assert isinstance(start, AtTime)
    assert start.or_latest


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingOffsets", JSON),
        ("endingOffsetsByTimestamp", JSON),
        ("endingTimestamp", "7"),
    ],
)
def test_a_stream_has_no_end(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"'{option}' is given, and a stream has no end.*AvailableNow.*spark.read"):
        modes.check_stream(parsed(**{option: value}))


def test_a_stream_needs_a_group_and_a_bounded_read_only_where_it_starts_at_its_commits() -> None:
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: a stream"):
        modes.check_stream(parsed(group=""))
    modes.check_stream(parsed())
    modes.check_bounded(parsed(group=""))
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: 'startingOffsets' is committed"):
        modes.check_bounded(parsed(group="", startingOffsets="committed"))
    modes.check_bounded(parsed(startingOffsets="committed"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "'startingOffsets' is latest"),
        ({"startingOffsets": '{"t":{"0":7,"1":-1}}'}, "'startingOffsets' is latest"),
        ({"endingOffsets": '{"t":{"0":7,"1":-2}}'}, "'endingOffsets' has -2"),
    ],
)
def test_a_bounded_read_that_could_have_no_records_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        modes.check_bounded(parsed(**given))
    modes.check_bounded(parsed(**given, startingTimestamp="3", endingTimestamp="4"))


def test_what_a_bounded_read_ignores_is_named_as_it_is_written_in_the_table() -> None:
    assert modes.ignored(["subscribe", "maxoffsetspertrigger", "KAFKA.SESSION.TIMEOUT.MS"]) == [
        "maxOffsetsPerTrigger",
        "kafka.session.timeout.ms",
    ]
    assert set(modes.STREAM_ONLY) <= {option.name for option in OPTIONS}
