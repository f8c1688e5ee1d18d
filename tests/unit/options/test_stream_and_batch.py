"""What the same options mean in a stream and in a bounded read."""

from __future__ import annotations

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import TopicPartition
from spark_group_source.options import stream_and_batch
from spark_group_source.options.offset_specs import AtTimestamp, Earliest, FromCommitted, Latest, SpecificOffsets
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS, SourceOptions

A = TopicPartition("t", 0)
JSON = '{"t":{"0":7}}'
EXACT = SpecificOffsets({A: 7}, "startingOffsets")


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
        ({"startingOffsets": "committed"}, FromCommitted(Latest()), FromCommitted(Earliest())),
        (
            {"startingOffsets": "committed", "startingOffsetsFallback": "earliest"},
            FromCommitted(Earliest()),
            FromCommitted(Earliest()),
        ),
        (
            {"startingOffsets": "committed", "startingOffsetsFallback": "latest"},
            FromCommitted(Latest()),
            FromCommitted(Latest()),
        ),
        ({"startingOffsets": "committed", "startingOffsetsFallback": "fail"}, FromCommitted(None), FromCommitted(None)),
    ],
)
def test_a_stream_starts_at_the_end_and_a_bounded_read_at_the_beginning_unless_told(
    given: dict[str, str], stream: object, bounded: object
) -> None:
    assert stream_and_batch.stream_start(parsed(**given)) == stream
    assert stream_and_batch.batch_start(parsed(**given)) == bounded


def test_one_time_goes_before_times_by_partition_and_these_before_offsets() -> None:
    offsets = {"startingOffsets": JSON, "endingOffsets": JSON}
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {"startingTimestamp": "3", "endingTimestamp": "4"}
    of_all = parsed(**offsets, **times, **time)
    of_two = parsed(**offsets, **times)
    assert (
        stream_and_batch.batch_start(of_all)
        == stream_and_batch.stream_start(of_all)
        == AtTimestamp(3, "startingTimestamp", False)
    )
    assert stream_and_batch.batch_end(of_all) == AtTimestamp(4, "endingTimestamp", True)
    assert stream_and_batch.batch_start(of_two) == AtTimestamp({A: 5}, "startingOffsetsByTimestamp", False)
    assert stream_and_batch.batch_end(of_two) == AtTimestamp({A: 6}, "endingOffsetsByTimestamp", True)
    assert stream_and_batch.batch_end(parsed(**offsets)) == SpecificOffsets({A: 7}, "endingOffsets")
    assert stream_and_batch.batch_end(parsed()) == Latest()


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_the_strategy_applies_to_starting_times(option: str) -> None:
    value = "3" if option == "startingTimestamp" else '{"t":{"0":3}}'
    start = stream_and_batch.stream_start(parsed(**{option: value, "startingOffsetsByTimestampStrategy": "latest"}))
    assert isinstance(start, AtTimestamp)
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
    with pytest.raises(OptionError, match=f"'{option}' is set, and a stream has no end.*availableNow.*spark.read"):
        stream_and_batch.check_stream(parsed(**{option: value}))


def test_a_stream_needs_a_group_and_a_bounded_read_only_where_it_starts_at_its_commits() -> None:
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: a stream"):
        stream_and_batch.check_stream(parsed(group=""))
    stream_and_batch.check_stream(parsed())
    stream_and_batch.check_batch(parsed(group=""))
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: 'startingOffsets' is committed"):
        stream_and_batch.check_batch(parsed(group="", startingOffsets="committed"))
    stream_and_batch.check_batch(parsed(startingOffsets="committed"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "'startingOffsets' is latest"),
        ({"startingOffsets": '{"t":{"0":7,"1":-1}}'}, "'startingOffsets' is latest"),
        ({"endingOffsets": '{"t":{"0":7,"1":-2}}'}, "'endingOffsets' contains -2"),
    ],
)
def test_a_bounded_read_that_could_have_no_records_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        stream_and_batch.check_batch(parsed(**given))
    stream_and_batch.check_batch(parsed(**given, startingTimestamp="3", endingTimestamp="4"))


def test_what_a_bounded_read_ignores_is_named_as_it_is_written_in_the_table() -> None:
    assert stream_and_batch.ignored_in_batch_reads(
        ["subscribe", "maxoffsetspertrigger", "KAFKA.SESSION.TIMEOUT.MS"]
    ) == [
        "maxOffsetsPerTrigger",
        "kafka.session.timeout.ms",
    ]
    assert set(stream_and_batch.STREAM_ONLY) <= {option.name for option in OPTIONS}
