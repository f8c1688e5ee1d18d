"""The columns a record becomes, in Arrow: exactly those of Spark's own Kafka source.

Spark takes batches from a Python source only where types and names are its own: microseconds in UTC, ``binary`` and
``string`` with 32-bit offsets, ``element`` as the name of what a list holds, every field nullable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))

ALL = pa.schema(
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
"""Every column there is; ``headers`` is NULL, not empty, for a record without any."""


TEXTS = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.string())])
"""Columns that may be had as text as well: their bytes must then be UTF-8."""


def arrow_schema(names: Iterable[str], texts: Collection[str] = ()) -> pa.Schema:
    """The Arrow schema with these columns, in this order, and those in ``texts`` as text.

    Raises:
        KeyError: there is no such column.
    """
    return pa.schema([(TEXTS if name in texts else ALL).field(name) for name in names])
