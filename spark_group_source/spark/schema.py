"""The source's schema, in Spark's types: exactly that of Spark's own Kafka source."""

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
from spark_group_source.records.columns import TEXTS, arrow_schema

HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


def source_schema(include_headers: bool) -> StructType:
    """All columns; ``headers`` is NULL, not empty, for a record without any."""
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


def columns_of(wanted: StructType) -> pa.Schema:
    """The Arrow columns that a user's schema asks for: some of the source's in any order, key and value also as text.

    Raises:
        OptionError: a column is not one of the source's, has another type, or is NOT NULL.
    """
    known = {each.name: [each.dataType] for each in source_schema(include_headers=True)}
    for name in TEXTS.names:
        known[name].append(StringType())
    for column in wanted:
        kinds = [each.simpleString() for each in known.get(column.name, [])]
        if column.dataType.simpleString() in kinds and not (column.nullable and column.dataType in known[column.name]):
            # Spark expects such a column of each task, and every task fails with a schema that does not match.
            raise OptionError(
                f"The schema asks for column '{column.name}' as NOT NULL, and each column of this source may be NULL.",
                f"Write '{column.name} {column.dataType.simpleString()}' without NOT NULL in .schema(...). To leave"
                f" out rows that have none, add .where('{column.name} IS NOT NULL').",
            )
        if column.dataType not in known.get(column.name, []):
            raise OptionError(
                f"The schema asks for column '{column.name}' of type {column.dataType.simpleString()}.",
                "Known are: " + ", ".join(f"{name} {_either(kinds)}" for name, kinds in known.items()) + ".",
            )
    texts = [each.name for each in wanted if each.name in TEXTS.names and each.dataType == StringType()]
    return arrow_schema(wanted.names, texts)


def _either(kinds: list[DataType]) -> str:
    return " or ".join(each.simpleString() for each in kinds)
