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
    """All columns. For a record without headers, ``headers`` is NULL, not an empty list."""
    columns = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    return StructType([*columns, HEADERS] if include_headers else columns)


def to_arrow_schema(requested: StructType) -> pa.Schema:
    """The Arrow columns of a user's schema: any of the source's columns in any order, key and value also as text.

    Raises:
        OptionError: a column is unknown, has another type, or is NOT NULL.
    """
    known = {each.name: [each.dataType] for each in source_schema(include_headers=True)}
    for name in TEXT_COLUMNS.names:
        known[name].append(StringType())
    for column in requested:
        types = [each.simpleString() for each in known.get(column.name, [])]
        if column.dataType.simpleString() in types and not (column.nullable and column.dataType in known[column.name]):
            # Spark would expect NOT NULL from each task, and every task would fail with a schema mismatch.
            raise OptionError(
                f"The schema asks for column '{column.name}' as NOT NULL, but each column of this source may be NULL.",
                f"Write '{column.name} {column.dataType.simpleString()}' without NOT NULL in .schema(...). To skip"
                f" rows without a value, add .where('{column.name} IS NOT NULL').",
            )
        if column.dataType not in known.get(column.name, []):
            columns = ", ".join(f"{name} {_type_names(types)}" for name, types in known.items())
            raise OptionError(
                f"The schema asks for column '{column.name}' of type {column.dataType.simpleString()}.",
                f"Use some of these columns: {columns}.",
            )
    texts = [each.name for each in requested if each.name in TEXT_COLUMNS.names and each.dataType == StringType()]
    return arrow_schema(requested.names, texts)


def _type_names(types: list[DataType]) -> str:
    return " or ".join(each.simpleString() for each in types)
