"""What pushed filters say of the rows that a batch query needs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.batch_query import RowFilter
from spark_group_source.spark.batch import GroupBatchReader
from spark_group_source.spark.filters import row_filter
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.tasks import Application

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TOPIC, PARTITION, OFFSET, TIMESTAMP = ("topic",), ("partition",), ("offset",), ("timestamp",)


def micros(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([EqualTo(TOPIC, "orders"), EqualTo(PARTITION, 1)], {"orders-1"}),
        ([EqualNullSafe(TOPIC, "orders"), GreaterThan(PARTITION, 1)], {"orders-2"}),
        ([StringStartsWith(TOPIC, "re"), GreaterThanOrEqual(PARTITION, 1)], {"returns-1", "returns-2"}),
        ([StringEndsWith(TOPIC, "ers"), LessThan(PARTITION, 1)], {"orders-0"}),
        ([StringContains(TOPIC, "turn"), LessThanOrEqual(PARTITION, 0)], {"returns-0"}),
        ([In(TOPIC, ("orders", "x")), Not(In(PARTITION, (0, 1)))], {"orders-2"}),
        ([Not(StringStartsWith(TOPIC, "re")), Not(EqualTo(PARTITION, 1))], {"orders-0", "orders-2"}),
        ([Not(Not(EqualTo(TOPIC, "orders"))), Not(LessThan(PARTITION, 2))], {"orders-2"}),
        ([GreaterThan(TOPIC, "p"), IsNotNull(PARTITION), EqualTo(PARTITION, 0)], {"returns-0"}),
        ([In(PARTITION, ())], set()),
        ([IsNull(TOPIC)], set()),
        ([Not(IsNotNull(OFFSET))], set()),
        ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 5)], set()),
        ([GreaterThan(TIMESTAMP, micros(5)), LessThan(TIMESTAMP, micros(5))], set()),
    ],
)
def test_filters_leave_the_partitions_whose_rows_may_pass(filters: list[Filter], left: set[str]) -> None:
    every = [TopicPartition(topic, number) for topic in ("orders", "returns") for number in range(3)]
    assert {str(tp) for tp in every if row_filter(filters).keeps_partition(tp)} == left


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([GreaterThan(OFFSET, 12), LessThan(OFFSET, 15)], [13, 14]),
        ([GreaterThanOrEqual(OFFSET, 12), LessThanOrEqual(OFFSET, 13)], [12, 13]),
        ([Not(GreaterThan(OFFSET, 11)), Not(LessThan(OFFSET, 11))], [11]),
        ([Not(GreaterThanOrEqual(OFFSET, 12)), Not(LessThanOrEqual(OFFSET, 10))], [11]),
        ([EqualTo(OFFSET, 12)], [12]),
        ([EqualNullSafe(OFFSET, 12)], [12]),
        ([In(OFFSET, (16, 14, 99))], [14, 15, 16, 17, 18, 19]),
        ([Not(In(OFFSET, (10, 11)))], list(range(10, 20))),
        ([GreaterThan(OFFSET, 2**63 - 1)], []),
        ([LessThan(OFFSET, -(2**63))], []),
    ],
)
def test_filters_leave_the_offsets_that_may_pass(filters: list[Filter], left: list[int]) -> None:
    found = row_filter(filters).narrow(OffsetRange("t", 0, 10, 20))
    assert 10 <= found.start <= found.end <= 20
    assert list(range(found.start, found.end)) == left


@pytest.mark.parametrize(
    ("filters", "earliest"),
    [
        ([GreaterThanOrEqual(TIMESTAMP, micros(5000))], 5),
        ([GreaterThanOrEqual(TIMESTAMP, micros(5001))], 6),
        ([GreaterThan(TIMESTAMP, micros(5000))], 6),
        ([GreaterThan(TIMESTAMP, micros(4999))], 5),
        ([In(TIMESTAMP, (micros(9000), micros(7000)))], 7),
        ([Not(LessThan(TIMESTAMP, micros(5000)))], 5),
        ([GreaterThan(TIMESTAMP, micros(1000)), GreaterThan(TIMESTAMP, micros(5000))], 6),
        ([GreaterThanOrEqual(TIMESTAMP, datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))], None),
        ([GreaterThanOrEqual(TIMESTAMP, datetime(1960, 1, 1, tzinfo=timezone.utc))], None),
        ([LessThan(TIMESTAMP, micros(5000))], None),
    ],
)
def test_filters_leave_times_from_the_first_that_may_pass(filters: list[Filter], earliest: int | None) -> None:
    assert row_filter(filters).earliest_time == earliest


@pytest.mark.parametrize(
    "ignored",
    [
        EqualTo(("value",), b"1"),
        EqualTo(("headers", "offset"), 1),
        EqualTo(("timestampType",), 1),
        EqualTo(PARTITION, None),
        EqualTo(PARTITION, False),
        EqualTo(OFFSET, 1.0),
        StringStartsWith(PARTITION, "1"),
        EqualTo(TOPIC, 1),
        In(PARTITION, (7, None)),
        Not(In(PARTITION, (0, None))),
        Not(EqualTo(PARTITION, None)),
        Not(EqualTo(OFFSET, 12)),
        GreaterThan(TIMESTAMP, datetime(2100, 1, 1)),  # noqa: DTZ001 -- a time without a time zone
        GreaterThan(TIMESTAMP, date(2100, 1, 1)),
        GreaterThan(TIMESTAMP, 2**62),
        LessThan(TIMESTAMP, micros(5000)),
        Not(IsNull(TOPIC)),
        Filter(),
    ],
)
def test_other_filters_leave_everything(ignored: Filter) -> None:
    rows = row_filter([ignored])
    assert rows.keeps_partition(TopicPartition("t", 1))
    assert rows.narrow(OffsetRange("t", 1, 10, 20)) == OffsetRange("t", 1, 10, 20)
    assert rows.earliest_time is None


TESTS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda column, values: column in values,
}
VALUES = {
    "topic": st.sampled_from(["", "a", "ab", "b"]),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 12),
    "timestamp": st.integers(-3000, 12000).map(micros),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from(list(TESTS)))
    value = draw(st.lists(VALUES[column], max_size=3).map(tuple) if kind is In else VALUES[column])
    pushed = kind((column,), value)
    return Not(pushed) if draw(st.booleans()) else pushed


def passes(pushed: Filter, row: dict[str, Any]) -> bool:
    if isinstance(pushed, Not):
        return not passes(pushed.child, row)
    return TESTS[type(pushed)](row[pushed.attribute[0]], pushed.value)  # type: ignore[attr-defined]


def is_left(rows: RowFilter, row: dict[str, Any]) -> bool:
    offset, time = row["offset"], (row["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    left = rows.narrow(OffsetRange(row["topic"], row["partition"], 0, 11))
    earlier = rows.earliest_time is not None and time < rows.earliest_time
    return rows.keeps_partition(left.tp) and left.start <= offset < left.end and not earlier


@given(
    st.lists(filters(), max_size=3),
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["a", "ab", "b"]),
            "partition": st.integers(0, 2),
            "offset": st.integers(0, 10),
            "timestamp": st.integers(-1, 10).map(lambda milliseconds: micros(1000 * milliseconds)),
        }
    ),
)
def test_each_row_that_passes_is_left(pushed: list[Filter], row: dict[str, Any]) -> None:
    if all(passes(each, row) for each in pushed):
        assert is_left(row_filter(pushed), row)


def test_spark_gets_every_filter_back_and_takes_no_reader_for_one_that_overrides_push_filters() -> None:
    pushed: list[Filter] = [EqualTo(PARTITION, 1), GreaterThan(OFFSET, 5), EqualTo(("value",), b"1")]
    for options in ({}, {"pushDownFilters": "true"}):
        parsed = parse_options({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"} | options)
        reader = GroupBatchReader(parsed, source_schema(include_headers=False), Application(), [])
        # Spark's own check, in pyspark/sql/worker/plan_data_source_read.py.
        assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    left = list(reader.pushFilters(pushed))
    assert [id(each) for each in left] == [id(each) for each in pushed]
