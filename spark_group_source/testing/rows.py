"""Converts rows of tests to Kafka records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spark_group_source.testing.errors import RowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MILLISECOND = timedelta(milliseconds=1)

Value: TypeAlias = str | bytes | None
Row: TypeAlias = Value | tuple[Any, ...] | Mapping[str, Any]
"""A value; or a tuple of the first fields of :class:`Record`; or a dict with some of these fields."""


class Record(NamedTuple):
    """A record to write. The timestamp is in milliseconds since 1970; if ``None``, the producer sets it."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None
    partition: int | None = None
    topic: str | None = None


def records(rows: Iterable[Row] | DataFrame) -> Iterator[Record]:
    """Converts rows (see :data:`Row`), or a Spark DataFrame with columns of these names.

    Keys and values are bytes or text; text is written as UTF-8. Headers are pairs of name and value, or a dict. A
    timestamp is a number of milliseconds since 1970 or a ``datetime``, which is local if it has no time zone.

    Raises:
        RowError: a row has an unknown field, or a value that cannot be written.
    """
    for number, row in enumerate(_collected(rows)):
        try:
            yield _record(_named(row))
        except (TypeError, ValueError) as error:
            known = ", ".join(Record._fields)
            raise RowError(
                f"Row {number} cannot be written: {error}.",
                f"Give a value, a dict with some of the fields {known}, or a tuple of them in this order.",
            ) from error


def _collected(rows: Iterable[Row] | DataFrame) -> Iterable[Any]:
    # Before pyspark is imported no DataFrame exists, and this module must not import it.
    spark = sys.modules.get("pyspark.sql")
    if spark is not None and isinstance(rows, spark.DataFrame):
        collected: list[Any] = rows.collect()
        return collected
    if isinstance(rows, (str, bytes, Mapping)):
        raise RowError(f"Rows must be a list, not one {type(rows).__name__}.", "Put it into a list.")
    return rows  # type: ignore[return-value]


def _named(row: Any) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple):
        # Spark's rows are tuples with column names.
        names = getattr(row, "__fields__", Record._fields)
        if len(row) > len(names):
            raise ValueError(f"it has {len(row)} fields, but a record has {len(names)}")
        return dict(zip(names, row, strict=False))
    return {"value": row}


def _record(row: Mapping[str, Any]) -> Record:
    unknown = sorted(set(row) - set(Record._fields))
    if unknown:
        raise ValueError(f"{', '.join(map(repr, unknown))} is not a field of a record")
    record = Record(
        key=_bytes("key", row.get("key")),
        value=_bytes("value", row.get("value")),
        headers=_headers(row.get("headers")),
        timestamp=_milliseconds(row.get("timestamp")),
        partition=_typed("partition", row.get("partition"), int),
        topic=_typed("topic", row.get("topic"), str),
    )
    if record.key is None and record.value is None:
        raise ValueError("it has neither key nor value, which kafka-python does not write")
    return record


def _bytes(name: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return str(_typed(name, value, str)).encode()


def _headers(headers: Any) -> tuple[tuple[str, bytes], ...]:
    pairs = headers
    if headers is None:
        pairs = ()
    elif isinstance(headers, Mapping):
        pairs = headers.items()
    converted = []
    for name, value in pairs:
        content = _bytes(f"header {name}", value)
        if content is None:
            raise ValueError(f"the header {name} is null, which kafka-python does not write")
        converted.append((str(name), content))
    return tuple(converted)


def _milliseconds(timestamp: Any) -> int | None:
    if isinstance(timestamp, datetime):
        # In integers, because float seconds may round to the millisecond before.
        return (timestamp.astimezone(timezone.utc) - EPOCH) // MILLISECOND
    number: int | None = _typed("timestamp", timestamp, int)
    return number


def _typed(name: str, value: Any, expected: type) -> Any:
    if value is None:
        return None
    is_bool = isinstance(value, bool)  # an int in Python
    if isinstance(value, expected) and not is_bool:
        return value
    raise TypeError(f"its {name} is of type {type(value).__name__}, not {expected.__name__}")
