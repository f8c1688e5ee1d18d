"""The source's schema, in Spark's types: exactly that of Spark's own Kafka source."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_group_source.errors import OptionError

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


def columns_of(wanted: StructType) -> tuple[str, ...]:
    """Names of the columns that a user's schema asks for: some of the source's, with its types, in any order.

    Raises:
        OptionError: a column is not one of the source's, or has another type.
    """
    known = {each.name: each.dataType for each in source_schema(include_headers=True)}
    for column in wanted:
        if known.get(column.name) != column.dataType:
            raise OptionError(
                f"The schema asks for column '{column.name}' of type {column.dataType.simpleString()}.",
                "Known are: " + ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items()) + ".",
            )
    return tuple(wanted.names)
