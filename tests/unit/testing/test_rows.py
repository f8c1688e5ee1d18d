"""Rows as tests write them become the records that are meant, or an error that says what is wrong."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import Row

from spark_group_source.testing.errors import RowError
from spark_group_source.testing.rows import Record, records

NOON = 1_767_268_800_123  # 2026-01-01 12:00:00.123 UTC


@pytest.mark.parametrize(
    ("row", "record"),
    [
        ("text \N{SNOWMAN}", Record(value=b"text \xe2\x98\x83")),
        (b"\xff", Record(value=b"\xff")),
        (("key", None), Record(key=b"key")),
        (("key", "value", {"a": "b"}, NOON, 3, "orders"), Record(b"key", b"value", (("a", b"b"),), NOON, 3, "orders")),
        ({"value": bytearray(b"v"), "partition": 0}, Record(value=b"v", partition=0)),
        ({"value": "v", "headers": [("a", "1"), ("a", b"2")]}, Record(value=b"v", headers=(("a", b"1"), ("a", b"2")))),
        ({"value": "v", "headers": None, "key": None, "timestamp": None}, Record(value=b"v")),
        (Row(value="v", key="k"), Record(key=b"k", value=b"v")),
        (Row(value="v", headers=[Row(key="a", value=bytearray(b"1"))]), Record(value=b"v", headers=(("a", b"1"),))),
    ],
)
def test_a_row_is_converted_to_a_record(row: Any, record: Record) -> None:
    assert list(records([row])) == [record]


def test_timestamps_are_milliseconds_since_1970_and_local_without_a_zone() -> None:
    times = (
        datetime(2026, 1, 1, 12, 0, 0, 123_000, tzinfo=timezone.utc),
        datetime(2026, 1, 1, 14, 0, 0, 123_999, tzinfo=timezone(timedelta(hours=2))),
        datetime.fromtimestamp(NOON / 1000),  # noqa: DTZ006 - as PySpark collects them
    )
    rows = [{"value": "v", "timestamp": time} for time in times]
    assert [each.timestamp for each in records(rows)] == [NOON] * 3


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"vaule": "v"}, "'vaule' is not a field of a record.* key, value, headers, timestamp, partition, topic"),
        (("k", "v", None, None, None, "t", "more"), "has 7 fields, but a record has 6"),
        ({"value": 5}, "its value is of type int"),
        ({"value": "v", "partition": True}, "its partition is of type bool"),
        ({"value": "v", "timestamp": 0.5}, "its timestamp is of type float"),
        ({"value": "v", "headers": {"a": None}}, "the header a is null"),
        ({"value": "v", "headers": {"a": 1}}, "its header a is of type int"),
        (("k", "v", "header"), "cannot be written"),
        ((None, None), "neither key nor value"),
    ],
)
def test_the_error_of_an_invalid_row_names_the_row_and_the_reason(row: Any, complaint: str) -> None:
    with pytest.raises(RowError, match=f"Row 1 .*{complaint}"):
        list(records(["fine", row]))


def test_a_single_row_instead_of_a_list_is_rejected() -> None:
    wrong: list[Any] = ["text", b"bytes", {"value": "v"}]
    for rows in wrong:
        with pytest.raises(RowError, match="Put it into a list"):
            list(records(rows))
