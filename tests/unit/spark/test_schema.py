"""The columns that a user's schema may request."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from spark_group_source.errors import OptionError
from spark_group_source.records.columns import ALL_COLUMNS
from spark_group_source.spark.schema import source_schema, to_arrow_schema


def columns(**requested: DataType) -> pa.Schema:
    return to_arrow_schema(StructType([StructField(name, kind) for name, kind in requested.items()]))


def test_the_sources_own_schema_is_all_columns() -> None:
    assert to_arrow_schema(source_schema(include_headers=True)) == ALL_COLUMNS
    assert to_arrow_schema(source_schema(include_headers=False)).names == ALL_COLUMNS.names[:-1]


def test_some_columns_in_any_order_and_key_and_value_as_text() -> None:
    assert columns(offset=LongType(), value=BinaryType()) == pa.schema(
        [ALL_COLUMNS.field("offset"), ALL_COLUMNS.field("value")]
    )
    text = columns(value=StringType(), topic=StringType(), key=StringType())
    assert text == pa.schema([("value", pa.string()), ("topic", pa.string()), ("key", pa.string())])


@pytest.mark.parametrize(("name", "kind"), [("offset", IntegerType()), ("id", LongType())])
def test_other_columns_and_types_are_rejected_and_the_error_lists_the_known_columns(name: str, kind: DataType) -> None:
    with pytest.raises(OptionError, match=f"'{name}' of type {kind.simpleString()}") as error:
        columns(value=BinaryType(), **{name: kind})
    assert "value binary or string" in error.value.action
    assert "offset bigint" in error.value.action


@pytest.mark.parametrize("name", ["value", "offset"])
def test_a_not_null_column_is_rejected_and_the_error_shows_the_correct_type(name: str) -> None:
    """Spark would fail each task: [DATA_SOURCE_RETURN_SCHEMA_MISMATCH], "Expected: offset: int64 not null"."""
    kind = source_schema(include_headers=True)[name].dataType
    with pytest.raises(OptionError, match=f"'{name}' as NOT NULL") as error:
        to_arrow_schema(StructType([StructField(name, kind, nullable=False)]))
    assert f"'{name} {kind.simpleString()}' without NOT NULL" in error.value.action


def test_headers_with_not_null_fields_are_rejected() -> None:
    parts = StructType([StructField("key", StringType(), nullable=False), StructField("value", BinaryType())])
    with pytest.raises(OptionError, match="'headers' as NOT NULL"):
        columns(headers=ArrayType(parts))
