"""The columns of the source as Arrow types: exactly those Spark expects for its Kafka schema."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

# Spark names the fields of a list type so, see pyspark.sql.pandas.types.to_arrow_type.
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
"""Type of each column by name; all are nullable."""


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order."""
    return pa.schema([pa.field(name, COLUMNS[name]) for name in names])
