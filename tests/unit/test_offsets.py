"""The offset JSON, which Spark logs and compares as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import (
    BatchLimit,
    BatchOffset,
    OffsetRange,
    PinnedStart,
    TopicPartition,
    latest_offset_json,
    new_checkpoint_id,
    parse_latest_offset,
    parse_limit,
)


def test_equal_offsets_have_equal_json_text_whatever_the_order_of_their_ranges() -> None:
    ranges = [OffsetRange("b", 10, 0, 1, "idb"), OffsetRange("b", 9, 3, 3, "idb"), OffsetRange("a", 0, 5, 8, "ida")]
    one, other = BatchOffset.from_ranges(ranges), BatchOffset.from_ranges(reversed(ranges))
    assert json.dumps(one.as_json()) == json.dumps(other.as_json())


def test_json_has_start_end_epoch_and_lineage_of_every_partition_the_topic_id_and_the_group() -> None:
    read = [OffsetRange("t", 1, 5, 9, "id", 3), OffsetRange("t", 0, 2, 2, "id")]
    moved = [OffsetRange("t", 2, 0, 1, "id", 3, 70), OffsetRange("t", 3, 0, 1, "id", -1, 70)]
    offset = BatchOffset.from_ranges(read + moved, "g")
    assert offset.as_json() == {
        "group": "g",
        "topics": {
            "t": {"id": "id", "partitions": {"0": [2, 2], "1": [5, 9, 3], "2": [0, 1, 3, 70], "3": [0, 1, -1, 70]}}
        },
        "version": 3,
    }


def test_offsets_survive_json_text() -> None:
    offset = BatchOffset.from_ranges([OffsetRange("t", n, n, n * 2, "id", n - 1, n % 3) for n in range(12)], "g")
    assert BatchOffset.from_json(json.loads(json.dumps(offset.as_json()))) == offset


def test_pinned_starts_survive_json_text_and_are_read_without_the_id_and_epoch() -> None:
    starts = {TopicPartition("t", 0): PinnedStart("id", 7, 2), TopicPartition("t", 1): PinnedStart("id")}
    logged = BatchOffset({}, "g", starts).as_json()
    assert logged["starts"] == {"t": {"id": "id", "partitions": {"0": [7, 2], "1": None}}}
    assert BatchOffset.from_json(json.loads(json.dumps(logged))).pinned_starts == starts
    former = BatchOffset.from_json({**logged, "starts": {"t": {"0": 7, "1": None}}})
    assert [*former.pinned_starts.values()] == [PinnedStart("", 7), PinnedStart()]


def test_a_batch_that_repeats_the_last_one_has_another_json_text_and_no_other_batch_has_it() -> None:
    offset = BatchOffset.from_ranges([OffsetRange("t", 0, 0, 3, "id")], "g")
    repeated = replace(offset, repeated=True)
    assert repeated.as_json() == {**offset.as_json(), "repeated": True}
    assert BatchOffset.from_json(json.loads(json.dumps(repeated.as_json()))) == repeated != offset


def test_the_cluster_survives_json_text_and_is_left_out_if_it_is_unknown() -> None:
    unknown = BatchOffset.from_ranges([OffsetRange("t", 0, 3, 7, "id")], "g")
    known = replace(unknown, cluster="cluster 1")
    assert known.as_json() == {**unknown.as_json(), "cluster": "cluster 1"}
    assert BatchOffset.from_json(json.loads(json.dumps(known.as_json()))) == known != unknown
    assert BatchOffset.from_json(unknown.as_json()).cluster == ""


def test_the_id_of_the_checkpoint_survives_json_text_and_is_left_out_before_there_is_one() -> None:
    without = BatchOffset.from_ranges([OffsetRange("t", 0, 3, 7, "id")], "g")
    checkpoint = new_checkpoint_id()
    assert re.fullmatch("[0-9a-f]{16}", checkpoint)
    assert checkpoint != new_checkpoint_id()
    logged = replace(without, checkpoint=checkpoint)
    assert logged.as_json() == {**without.as_json(), "checkpoint": checkpoint}
    assert BatchOffset.from_json(json.loads(json.dumps(logged.as_json()))) == logged != without
    assert BatchOffset.from_json(without.as_json()).checkpoint == ""


def test_version_1_offsets_are_read_with_unknown_epoch_and_group() -> None:
    logged = {"topics": {"t": {"id": "id", "partitions": {"0": [2, 2], "1": [5, 9]}}}, "version": 1}
    expected = BatchOffset.from_ranges([OffsetRange("t", 0, 2, 2, "id", -1), OffsetRange("t", 1, 5, 9, "id", -1)], "")
    assert BatchOffset.from_json(logged) == expected


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_new_checkpoint_has_the_empty_offset(nothing: dict[str, object] | None) -> None:
    assert BatchOffset.from_json(nothing) == BatchOffset()


SPARKS = r'written by format\("kafka"\).*"orders".*explain CHECKPOINT_MISMATCH$'
ANOTHERS = "offsets of another source.*new checkpoint"


@pytest.mark.parametrize(
    ("foreign", "says"),
    [
        ({"orders": {"0": 23, "1": 0}, "version": {"0": 1}}, SPARKS),
        ({"version": 4, "topics": {}}, "version 4.*new checkpoint"),
        ({"version": 1, "topics": {"t": {"0": 3}}}, ANOTHERS),
        ({"version": 1, "topics": {"t": {"id": "x", "partitions": {"0": [1]}}}}, ANOTHERS),
        ({"version": 2, "topics": {"t": {"id": "x", "partitions": {"0": [1, 2, 3, 4, 5]}}}}, ANOTHERS),
    ],
)
def test_offsets_of_another_source_or_a_later_version_are_an_error(foreign: dict[str, object], says: str) -> None:
    with pytest.raises(GroupSourceError, match=says):
        BatchOffset.from_json(foreign)


# The latest offset that a stream's reader reports to Spark

END_OFFSETS = {TopicPartition("orders", 10): 7, TopicPartition("orders", 2): 5, TopicPartition("a", 0): 0}


def test_the_report_has_end_offsets_by_topic_and_the_counters_beside_them() -> None:
    report = latest_offset_json(END_OFFSETS, {"lost": 3})
    assert report == {"a": {"0": 0}, "orders": {"2": 5, "10": 7}, "#counters": {"lost": 3}}
    assert list(report) == ["a", "orders", "#counters"]


def test_the_report_says_what_limited_the_batch_beside_the_counters() -> None:
    limit = BatchLimit("targetBatchDuration", 475_000, "the last batch took 9.8 s for 470,000 offsets")
    report = json.loads(json.dumps(latest_offset_json({TopicPartition("t", 0): 5}, {"lost": 3}, limit)))
    assert report["#limit"] == {"option": limit.option, "offsets": 475_000, "reason": limit.reason}
    assert parse_latest_offset(report) == ({TopicPartition("t", 0): 5}, {"lost": 3})
    assert parse_limit(report) == limit
    for other in ({}, {"#limit": 5}, {"#limit": {"option": "maxOffsetsPerTrigger"}}):
        assert parse_limit(other) is None, "another release reports another form"


def test_a_report_is_parsed_to_the_same_end_offsets_and_counters() -> None:
    assert parse_latest_offset(latest_offset_json(END_OFFSETS, {"lost": 3})) == (END_OFFSETS, {"lost": 3})
    assert parse_latest_offset(latest_offset_json({}, {})) == ({}, {})
    assert parse_latest_offset({"orders": {"2": 5}}) == ({TopicPartition("orders", 2): 5}, None), "an earlier release"
