"""The columns of a row in Arrow: exactly those of Spark's ``format("kafka")``.

Spark accepts Arrow batches of a Python source only if types and names are Spark's: microseconds in UTC, ``binary`` and
``string`` with 32-bit offsets, ``element`` as the name of list elements, every field nullable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))

ALL_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
"""All columns; ``headers`` is NULL, not empty, for a record without headers."""

TEXT_COLUMNS = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.string())])
"""Columns that are also available as text, if their bytes are UTF-8."""


def arrow_schema(names: Iterable[str], texts: Collection[str] = ()) -> pa.Schema:
    """The Arrow schema with these columns, in this order; the columns in ``texts`` are text.

    Raises:
        KeyError: a column does not exist.
    """
    return pa.schema([(TEXT_COLUMNS if name in texts else ALL_COLUMNS).field(name) for name in names])
