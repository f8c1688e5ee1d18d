"""The source's schema, in Spark's types: the same as the schema of Spark's own Kafka source."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_group_source.errors import OptionError
from spark_group_source.records.columns import TEXT_COLUMNS, arrow_schema

HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


def source_schema(include_headers: bool) -> StructType:
    """All columns. The ``headers`` of a record without headers are NULL, not an empty list."""
    columns = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        columns.append(HEADERS)
    return StructType(columns)


def to_arrow_schema(requested: StructType) -> pa.Schema:
    """The Arrow columns of a user's schema, which may have any of the source's columns in any order. The key and the
    value may also be text.

    Raises:
        OptionError: a column is unknown, has another type, or is NOT NULL.
    """
    known = _known_types()
    texts = []
    for column in requested:
        _check_column(column, known)
        if column.name in TEXT_COLUMNS.names and column.dataType == StringType():
            texts.append(column.name)
    return arrow_schema(requested.names, texts)


def _known_types() -> dict[str, list[DataType]]:
    """The types that a user may ask for, by the name of the column."""
    known = {each.name: [each.dataType] for each in source_schema(include_headers=True)}
    for name in TEXT_COLUMNS.names:
        known[name].append(StringType())
    return known


def _check_column(column: StructField, known: dict[str, list[DataType]]) -> None:
    """Raises the errors of :func:`to_arrow_schema`."""
    types = known.get(column.name, [])
    if column.nullable and column.dataType in types:
        return
    # The text of a type does not show whether the items of an array and the fields of a struct may be NULL.
    type_name = column.dataType.simpleString()
    if type_name in [each.simpleString() for each in types]:
        # Spark would expect a NOT NULL column from each task, and every task would fail with a schema mismatch.
        raise OptionError(
            f"The schema asks for column '{column.name}' as NOT NULL, but each column of this source may be NULL.",
            f"Write '{column.name} {type_name}' without NOT NULL in .schema(...). To skip"
            f" rows without a value, add .where('{column.name} IS NOT NULL').",
        )
    raise OptionError(
        f"The schema asks for column '{column.name}' of type {type_name}.",
        f"Use some of these columns: {_columns(known)}.",
    )


def _columns(known: dict[str, list[DataType]]) -> str:
    columns = []
    for name, types in known.items():
        type_names = " or ".join(each.simpleString() for each in types)
        columns.append(f"{name} {type_names}")
    return ", ".join(columns)
