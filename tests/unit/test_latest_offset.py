"""The latest offset that a stream's reader reports to Spark."""

from __future__ import annotations

from spark_group_source.offsets import TopicPartition, latest_offset_json, parse_latest_offset

END_OFFSETS = {TopicPartition("orders", 10): 7, TopicPartition("orders", 2): 5, TopicPartition("a", 0): 0}


def test_the_report_has_end_offsets_by_topic_and_the_counters_beside_them() -> None:
    report = latest_offset_json(END_OFFSETS, {"lost": 3})
    assert report == {"a": {"0": 0}, "orders": {"2": 5, "10": 7}, "#counters": {"lost": 3}}
    assert list(report) == ["a", "orders", "#counters"]


def test_a_report_is_parsed_to_the_same_end_offsets_and_counters() -> None:
    assert parse_latest_offset(latest_offset_json(END_OFFSETS, {"lost": 3})) == (END_OFFSETS, {"lost": 3})
    assert parse_latest_offset(latest_offset_json({}, {})) == ({}, {})


def test_a_report_of_an_earlier_release_has_no_counters() -> None:
    assert parse_latest_offset({"orders": {"2": 5}}) == ({TopicPartition("orders", 2): 5}, None)
