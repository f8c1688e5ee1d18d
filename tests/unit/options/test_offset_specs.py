"""The parsers of the start and end options, which have other defaults in a stream than in a batch query."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import BatchLimit, BatchOffset, OffsetRange, TopicPartition, latest_offset_json
from spark_group_source.options import offset_parsers, source_options, table
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    FromCommitted,
    Latest,
    SpecificOffsets,
    as_json,
)
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 10)


def test_starting_offsets_are_words_in_any_case_or_json() -> None:
    words = [offset_parsers.parse_start(text) for text in ("earliest", " LATEST ", "Committed")]
    assert words == [Earliest(), Latest(), FromCommitted(None)]
    assert offset_parsers.parse_start('{"t":{"0":23.0}}') == SpecificOffsets({A: 23}, "startingOffsets")
    specific = SpecificOffsets({A: 23, B: Earliest(), C: Latest()}, "startingOffsets")
    assert offset_parsers.parse_start(' {"t": {"0": 23}, "u": {"10": -1}, "t": {"1": -2}} ') == specific


@pytest.mark.parametrize(("number", "others"), [(-2, Earliest()), (-1, Latest())])
def test_the_json_of_starting_offsets_may_cover_all_other_partitions(number: int, others: Earliest | Latest) -> None:
    spec = offset_parsers.parse_start(f'{{"*":{number},"t":{{"0":23}}}}')
    assert spec == SpecificOffsets({A: 23}, "startingOffsets", others)
    assert isinstance(spec, SpecificOffsets)
    assert (spec.of(A), spec.of(C)) == (23, others)
    assert as_json(spec.offsets, spec.others) == f'{{"t":{{"0":23}},"*":{number}}}'


def test_an_unclear_offset_of_all_other_partitions_is_an_error() -> None:
    word = "give it earliest or latest"
    for others, says in (("7", word), ("true", word), ('{"0":-2}', word), ('-2,"*":-1', "twice")):
        with pytest.raises(ValueError, match=says):
            offset_parsers.parse_start(f'{{"t":{{"0":1}},"*":{others}}}')
    with pytest.raises(ValueError, match=r'the JSON has only "\*": write earliest or latest instead of JSON'):
        offset_parsers.parse_start('{"*":-2}')
    with pytest.raises(ValueError, match=r'only startingOffsets may have "\*"'):
        offset_parsers.parse_end('{"t":{"0":7},"*":-1}')
    with pytest.raises(ValueError, match=r'"\*" must have a value for each partition'):
        offset_parsers.timestamps_parser("startingOffsetsByTimestamp")('{"t":{"0":1735689600000},"*":-1}')


@pytest.mark.parametrize("parse", [offset_parsers.parse_start, offset_parsers.parse_end])
def test_earliest_and_latest_may_stand_for_a_topic_or_a_partition(parse: Callable[[str], object]) -> None:
    """A topic as a whole is of SPARK-58774; Spark's own source accepts no word for a partition."""
    spec = parse('{"t":"earliest","u":{"10":23,"0":" Latest "},"v":" LATEST"}')
    assert isinstance(spec, SpecificOffsets)
    assert spec.topics == {"t": Earliest(), "v": Latest()}
    assert spec.offsets == {C: 23, TopicPartition("u", 0): Latest()}
    places = (A, B, C, TopicPartition("v", 7), TopicPartition("w", 0))
    assert [spec.of(tp) for tp in places] == [Earliest(), Earliest(), 23, Latest(), None]
    text = as_json(spec.offsets, spec.others, spec.topics)
    assert text == '{"u":{"0":-1,"10":23},"t":"earliest","v":"latest"}'
    assert parse(text) == spec


def test_all_other_partitions_may_have_a_word_and_a_topic_may_have_a_number() -> None:
    spec = offset_parsers.parse_start('{"t":-2,"u":{"10":1},"*":"latest"}')
    assert spec == SpecificOffsets({C: 1}, "startingOffsets", Latest(), {"t": Earliest()})
    other = offset_parsers.parse_start('{"t":-1,"u":{"10":1},"*":"latest"}')
    assert isinstance(spec, SpecificOffsets)
    assert isinstance(other, SpecificOffsets)
    assert spec.digest != other.digest


PROGRESS = BatchOffset.from_ranges(
    [OffsetRange("t", 0, 3, 23, "id", 4), OffsetRange("t", 1, 7, 7, "id")], "g"
).as_json()


def test_an_offset_of_a_progress_is_read_as_the_positions_it_shows() -> None:
    """Users copy them: an offset of Spark's own source has the form of the option."""
    expected = {A: 23, B: 7}
    limit = BatchLimit("targetBatchDuration", 30, "")
    limited = latest_offset_json(expected, {"batches": 3}, limit)
    for shown in (PROGRESS, latest_offset_json(expected, {"batches": 3}), limited, {"t": {"0": 23, "1": 7}}):
        for parse in (offset_parsers.parse_start, offset_parsers.parse_end):
            spec = parse(json.dumps(shown))
            assert isinstance(spec, SpecificOffsets)
            assert spec.offsets == expected
    with pytest.raises(ValueError, match="JSON that this release can read.*format version 99.*up to 3$"):
        offset_parsers.parse_start(json.dumps(PROGRESS | {"version": 99}))
    for without_partitions in (json.dumps(BatchOffset(group="g").as_json()), '{"#counters": {}}'):
        with pytest.raises(ValueError, match="names no partition"):
            offset_parsers.parse_start(without_partitions)


def test_an_offset_may_be_the_json_string_that_the_progress_of_spark_connect_has() -> None:
    for shown in (PROGRESS, latest_offset_json({A: 23, B: 7}, {"batches": 3}), {"t": {"0": 23, "1": 7}}):
        quoted = json.dumps(json.dumps(shown))
        for parse in (offset_parsers.parse_start, offset_parsers.parse_end):
            for text in (quoted, f" {quoted} ", json.dumps(quoted)):
                spec = parse(text)
                assert isinstance(spec, SpecificOffsets)
                assert spec.offsets == {A: 23, B: 7}
            for bad in ('"earliest', '"first"', '""'):
                with pytest.raises(ValueError, match="or JSON with an offset"):
                    parse(bad)


def test_topics_may_have_the_names_of_the_parts_of_a_progress() -> None:
    spec = offset_parsers.parse_start('{"version":-2,"topics":{"0":5}}')
    assert spec == SpecificOffsets({TopicPartition("topics", 0): 5}, "startingOffsets", None, {"version": Earliest()})


def test_the_digest_of_offsets_depends_on_the_offsets_only() -> None:
    texts = [
        '{"t":{"0":1,"1":2},"*":-2}',
        '{"*":-2, "t":{"1":2,"0":1}}',
        '{"t":{"0":1,"1":3},"*":-2}',
        '{"t":{"0":1,"1":2}}',
    ]
    digests = [spec.digest for spec in map(offset_parsers.parse_start, texts) if isinstance(spec, SpecificOffsets)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"t":{"0":1}', "Expecting"),
        ("[]", "a JSON array names no topics"),
        ('{"t":[0,1]}', '"t" must have an offset for each of its partitions, or earliest or latest'),
        ('{"t":"first"}', '"t" must have an offset for each of its partitions, or earliest or latest'),
        ('{"t":{"0":"first"}}', '"first" is not a whole number'),
        ('{"t":23}', '"t" must have an offset for each of its partitions'),
        ('{"t":"earliest","t":"latest"}', 'the JSON names "t" twice'),
        ('{"t":"earliest","t":{"0":23}}', 'the JSON has values for "t" as a whole and for its partitions'),
        ("{}", "the JSON names no partition"),
        ('{"t":{}}', "the JSON names no partition"),
        ('{"t":{"first":1}}', "'first' is not a partition number"),
        ('{"t":{"0":-3}}', "-3 is not a whole number from -2 to 9223372036854775807"),
        ('{"t":{"0":"1"}}', '"1" is not a whole number'),
        ('{"t":{"-1":1}}', "'-1' is not a partition number"),
        ('{"t":{"2147483648":1}}', "'2147483648' is not a partition number"),
        ("[" * 100_000, "the JSON is nested too deeply"),
        ('{"t":{"0":1.5}}', "1.5 is not a whole number"),
        ('{"t":{"0":true}}', "true is not a whole number"),
        ('{"t":{"0":9223372036854775808}}', "9223372036854775808 is not a whole number"),
        ('{"t":{"0":{"1":2}}}', "a JSON object is not a whole number"),
        ('{"t":{"0":1,"00":2}}', "the JSON names t-0 twice"),
        ('{"t":{"0":1},"t":{"0":2}}', "the JSON names t-0 twice"),
    ],
)
def test_the_error_for_bad_json_has_an_example_and_the_reason(text: str, says: str) -> None:
    for parse, good in (
        (offset_parsers.parse_start, 'earliest, latest, committed or JSON.*{"orders":{"0":23,"1":-2}}'),
        (offset_parsers.parse_end, 'latest or JSON.*{"orders":{"0":23,"1":-1}}'),
    ):
        with pytest.raises(ValueError, match=good) as raised:
            parse(text)
        assert says in str(raised.value)


def test_a_time_in_seconds_is_an_error() -> None:
    of_all, of_each = offset_parsers.timestamp_parser("x"), offset_parsers.timestamps_parser("x")
    for text in ("1000000000", "1735689600", "9999999999"):
        for parse, given in ((of_all, text), (of_each, f'{{"t":{{"0":0,"1":{text}}}}}')):
            with pytest.raises(ValueError, match=f"for example.*{text} is in seconds: write {text}000"):
                parse(given)
    for good in (999999999, 10000000000, 1735689600000):
        assert of_all(str(good)) == AtTimestamp(good, "x", or_latest=False)
        assert of_each(f'{{"t":{{"0":0,"1":{good}}}}}') == AtTimestamp({A: 0, B: good}, "x", or_latest=False)
    assert offset_parsers.timestamp_parser("x", or_latest=True)(" 7 ") == AtTimestamp(7, "x", or_latest=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1735689600000000", "is in microseconds: write 1735689600000"),
        ("1735689600000000000", "is in nanoseconds: write 1735689600000"),
    ],
)
def test_a_time_in_a_finer_unit_is_an_error(text: str, says: str) -> None:
    for parse, given in (
        (offset_parsers.timestamp_parser("x"), text),
        (offset_parsers.timestamps_parser("x"), f'{{"t":{{"0":{text}}}}}'),
    ):
        with pytest.raises(ValueError, match=rf"{text} {says}\)"):
            parse(given)


def test_the_latest_time_is_accepted() -> None:
    assert offset_parsers.timestamp_parser("x")(str(2**63 - 1)) == AtTimestamp(2**63 - 1, "x", or_latest=False)


def test_ending_offsets_are_latest_or_json_and_the_fallback_is_earliest_latest_or_fail() -> None:
    assert offset_parsers.parse_end("Latest") == Latest()
    assert offset_parsers.parse_end('{"t":{"0":5,"1":-1}}') == SpecificOffsets({A: 5, B: Latest()}, "endingOffsets")
    fallbacks = [offset_parsers.parse_fallback(text).fallback for text in ("earliest", "Latest", "fail")]
    assert fallbacks == [Earliest(), Latest(), None]


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
def test_the_default_start_is_latest_in_streams_only(given: dict[str, str], stream: object, batch: object) -> None:
    assert source_options.stream_start(parsed(**given)) == stream
    assert source_options.batch_start(parsed(**given)) == batch


@pytest.mark.parametrize(
    ("given", "setting", "is_given"),
    [
        ({}, "startingOffsets=latest, the default", False),
        ({"startingOffsets": "latest"}, "startingOffsets=latest", True),
        ({"startingOffsets": "earliest"}, "startingOffsets=earliest", True),
        ({"startingOffsets": JSON}, "startingOffsets", True),
        (COMMITTED, "startingOffsetsFallback=latest", False),
        (COMMITTED | {FALLBACK: "earliest"}, "startingOffsetsFallback=earliest", False),
        (COMMITTED | {FALLBACK: "fail"}, "startingOffsetsFallback=fail", False),
        ({"startingTimestamp": "3", "startingOffsets": "earliest"}, "startingTimestamp=3", True),
        ({"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, "startingOffsetsByTimestamp", True),
    ],
)
def test_the_log_names_the_option_of_the_start_with_a_short_value(
    given: dict[str, str], setting: str, is_given: bool
) -> None:
    options = parsed(**given)
    assert source_options.start_setting(options) == setting
    assert source_options.start_is_given(options) == is_given


def test_one_time_precedes_times_by_partition_which_precede_offsets() -> None:
    exact = {"startingOffsets": JSON, "endingOffsets": JSON}
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {"startingTimestamp": "3", "endingTimestamp": "4"}
    of_all, of_two = parsed(**exact, **times, **time), parsed(**exact, **times)
    assert (
        source_options.batch_start(of_all)
        == source_options.stream_start(of_all)
        == AtTimestamp(3, "startingTimestamp", False)
    )
    assert source_options.batch_end(of_all) == AtTimestamp(4, "endingTimestamp", True)
    assert source_options.batch_start(of_two) == AtTimestamp({A: 5}, "startingOffsetsByTimestamp", False)
    assert source_options.batch_end(of_two) == AtTimestamp({A: 6}, "endingOffsetsByTimestamp", True)
    assert source_options.batch_end(parsed(**exact)) == SpecificOffsets({A: 7}, "endingOffsets")
    assert source_options.batch_end(parsed()) == Latest()


def test_the_timestamp_strategy_applies_to_starting_times() -> None:
    for given in ({"startingTimestamp": "3"}, {"startingOffsetsByTimestamp": '{"t":{"0":3}}'}):
        start = source_options.stream_start(parsed(**given, startingOffsetsByTimestampStrategy="latest"))
        assert isinstance(start, AtTimestamp)
        assert start.or_latest
    assert [offset_parsers.parse_timestamp_strategy(text) for text in ("error", "Latest")] == [False, True]


def test_an_end_in_a_stream_is_an_error() -> None:
    ends = ("endingOffsets", "latest"), ("endingOffsets", JSON), ("endingOffsetsByTimestamp", JSON)
    for option, value in (*ends, ("endingTimestamp", "7")):
        with pytest.raises(OptionError, match=f"'{option}' is set, but a stream has no end.*availableNow.*spark.read"):
            source_options.check_stream(parsed(**{option: value}))


def test_a_group_id_is_required_in_a_stream_and_to_start_at_committed() -> None:
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: a stream"):
        source_options.check_stream(parsed(group=""))
    source_options.check_stream(parsed())
    source_options.check_batch(parsed(group=""))
    with pytest.raises(OptionError, match="'kafka.group.id' is missing: 'startingOffsets' is committed"):
        source_options.check_batch(parsed(group="", startingOffsets="committed"))
    source_options.check_batch(parsed(startingOffsets="committed"))


def test_a_batch_read_from_latest_or_to_earliest_is_an_error() -> None:
    for name, value, says in (
        ("startingOffsets", "latest", "'startingOffsets' is latest"),
        ("startingOffsets", '{"t":{"0":7,"1":-1}}', "'startingOffsets' is latest"),
        ("startingOffsets", '{"t":"latest"}', "'startingOffsets' is latest"),
        ("endingOffsets", '{"t":{"0":7,"1":-2}}', "'endingOffsets' contains -2"),
        ("endingOffsets", '{"t":"earliest"}', "'endingOffsets' contains -2"),
    ):
        with pytest.raises(OptionError, match=says):
            source_options.check_batch(parsed(**{name: value}))
        source_options.check_batch(parsed(**{name: value}, startingTimestamp="3", endingTimestamp="4"))


def test_ignored_options_have_their_names_from_the_table() -> None:
    ignored = table.ignored_in_batch_queries(["subscribe", "maxoffsetspertrigger", "KAFKA.SESSION.TIMEOUT.MS"])
    assert ignored == ["maxOffsetsPerTrigger", "kafka.session.timeout.ms"]
