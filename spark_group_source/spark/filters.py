"""The filters that Spark pushes to a batch query, as a :class:`RowFilter`.

A filter that is not understood leaves the read as it is. Compared columns are never NULL: a filter is true or false
for a row, unless the value in the filter is NULL.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from pyspark.sql.datasource import (
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

from spark_group_source.query.batch_query import Interval, RowFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NOTHING = Interval(0, -1)

_TYPES: dict[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
"""The columns that narrow a read, and the type of values that they are compared with."""

_TESTS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda column, values: column in values,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}

_INTERVALS: dict[type, Callable[[Any], Interval]] = {
    EqualTo: lambda value: Interval(value, value),
    EqualNullSafe: lambda value: Interval(value, value),
    GreaterThan: lambda value: Interval(first=value + 1),
    GreaterThanOrEqual: lambda value: Interval(first=value),
    LessThan: lambda value: Interval(last=value - 1),
    LessThanOrEqual: lambda value: Interval(last=value),
    In: lambda values: Interval(min(values), max(values)) if values else _NOTHING,
}

_OPPOSITES: dict[type, type] = {
    GreaterThan: LessThanOrEqual,
    GreaterThanOrEqual: LessThan,
    LessThan: GreaterThanOrEqual,
    LessThanOrEqual: GreaterThan,
}


def row_filter(filters: Iterable[Filter]) -> RowFilter:
    """The rows that may pass all of the filters."""
    rows = RowFilter()
    for pushed in filters:
        rows = _narrow(rows, pushed)
    return rows


def _narrow(rows: RowFilter, pushed: Filter) -> RowFilter:
    negated = False
    while isinstance(pushed, Not):
        pushed, negated = pushed.child, not negated
    column = ".".join(getattr(pushed, "attribute", ()))
    if column not in _TYPES:
        return rows
    kind = type(pushed)
    if kind in (IsNull, IsNotNull):
        is_null = (kind is IsNull) is not negated
        return replace(rows, offsets=_NOTHING) if is_null else rows
    value = _value(kind, pushed.value, _TYPES[column])  # type: ignore[attr-defined]
    if value is None:
        return rows
    if column in ("topic", "partition"):
        return _with_test(rows, column, kind, value, negated)
    compared = _OPPOSITES.get(kind) if negated else kind
    interval = _INTERVALS.get(compared) if compared else None
    if interval is None:
        return rows
    if column == "offset":
        return replace(rows, offsets=rows.offsets & interval(value))
    return replace(rows, timestamps=rows.timestamps & interval(value))


def _with_test(rows: RowFilter, column: str, kind: type, value: Any, negated: bool) -> RowFilter:
    if kind not in _TESTS:
        return rows
    test = partial(_passes, kind, value, not negated)
    if column == "topic":
        return replace(rows, topic_tests=(*rows.topic_tests, test))
    return replace(rows, partition_tests=(*rows.partition_tests, test))


def _passes(kind: type, value: Any, expected: bool, column: Any) -> bool:
    return _TESTS[kind](column, value) is expected


def _value(kind: type, value: Any, expected: type) -> Any:
    """The value to compare with, times as microseconds; ``None`` if the column does not have this type, or for NULL."""
    if kind is In:
        # NULL among the values: a row that equals no other value is neither in the list nor outside it.
        values = [_value(EqualTo, each, expected) for each in value]
        return None if None in values else values
    if type(value) is not expected:  # True is an int in Python
        return None
    if not isinstance(value, datetime):
        return value
    return (value - _EPOCH) // timedelta(microseconds=1) if value.utcoffset() is not None else None
