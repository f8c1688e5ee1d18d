"""The source in Spark: its registration and its schema, without Spark."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import __version__ as pyspark_version
from pyspark.sql.datasource import DataSource
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
from spark_group_source.spark.application import Application
from spark_group_source.spark.schema import source_schema, to_arrow_schema
from spark_group_source.spark.source import register


class Session:
    """The parts of a Spark session that the registration uses."""

    def __init__(self, application_id: str) -> None:
        self.conf = {"spark.app.name": "orders", "spark.app.id": application_id}
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)


def test_each_session_gets_the_source_once_with_its_own_application() -> None:
    """Spark would warn of a second one."""
    sessions = [Session("local-1"), Session("local-2")]
    for each in sessions * 2:
        register(each)  # type: ignore[arg-type]
    found = [[source.application for source in each.registered] for each in sessions]
    assert found == [[Application("orders", "local-1")], [Application("orders", "local-2")]]


def columns(**requested: DataType) -> pa.Schema:
    return to_arrow_schema(StructType([StructField(name, kind) for name, kind in requested.items()]))


def test_a_schema_has_all_columns_or_some_in_any_order_with_key_and_value_as_text() -> None:
    assert to_arrow_schema(source_schema(include_headers=True)) == ALL_COLUMNS
    assert to_arrow_schema(source_schema(include_headers=False)).names == ALL_COLUMNS.names[:-1]
    fields = [ALL_COLUMNS.field("offset"), ALL_COLUMNS.field("value")]
    assert columns(offset=LongType(), value=BinaryType()) == pa.schema(fields)
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
    parts = StructType([StructField("key", StringType(), nullable=False), StructField("value", BinaryType())])
    with pytest.raises(OptionError, match="'headers' as NOT NULL"):
        columns(headers=ArrayType(parts))


@pytest.mark.skipif(pyspark_version.startswith("4.0."), reason="PySpark 4.0 needs register(spark)")
def test_sparks_lookup_finds_the_source_which_then_writes_no_records_to_disk() -> None:
    names = [info.name for info in iter_modules() if info.name.startswith("pyspark_")]
    found = [import_module(name) for name in names if name.endswith("kafka_group")]
    assert [module.DefaultSource.name() for module in found] == ["kafka-group"]
    assert issubclass(found[0].DefaultSource, DataSource)
    assert found[0].DefaultSource.application.encrypts_files, "nobody knows whether Spark encrypts its files"
