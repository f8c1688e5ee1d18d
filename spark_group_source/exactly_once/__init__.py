"""Exactly once in a table that several members of a group write, even after a checkpoint is lost.

>>> from spark_group_source.exactly_once import DeltaSink, foreach_batch
>>> sink = DeltaSink("lake.db.orders")
>>> sink.create(orders)
>>> foreach_batch(orders.writeStream, "/data/orders.checkpoint", sink.write).start()

``foreach_batch`` passes each batch to a sink, with the offset ranges in it. ``DeltaSink``, ``IcebergSink`` and, in
``spark_group_source.exactly_once.postgres``, ``PostgresSink`` write the records of the batch that the table lacks. For
another database, keep a position for each partition in the transaction that writes the rows: ``lacking`` compares the
positions with the ranges. ``docs/exactly_once.md`` says why that is enough.
"""

from __future__ import annotations

from spark_group_source.exactly_once.batches import batch_ranges, foreach_batch
from spark_group_source.exactly_once.merge import DeltaSink, IcebergSink, MergeSink, merge_condition
from spark_group_source.exactly_once.positions import Lacking, PartitionKey, Position, lacking
from spark_group_source.offsets import OffsetRange

__all__ = [
    "DeltaSink",
    "IcebergSink",
    "Lacking",
    "MergeSink",
    "OffsetRange",
    "PartitionKey",
    "Position",
    "batch_ranges",
    "foreach_batch",
    "lacking",
    "merge_condition",
]
