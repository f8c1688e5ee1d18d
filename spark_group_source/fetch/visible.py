"""Whether ranges of offsets have records for a consumer. Other offsets belong to transaction markers, aborted
transactions and records that compaction removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_group_source.fetch.reader import TaskReader
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.wire_options import WireOptions

MAX_SCAN_BYTES = 1024 * 1024
"""Maximum size in bytes of one response, unless a single record batch is larger."""


def with_records(
    ranges: Sequence[OffsetRange],
    wire: WireOptions,
    *,
    read_committed: bool,
    timeout: float,
    identity: ClusterIdentity | None = None,
) -> set[TopicPartition]:
    """The partitions whose range has a visible record. Reads all of the ranges, so keep them short.

    Reads as a task does, but over connections of its own, and keeps no records.

    Args:
        read_committed: the records of aborted transactions are not visible.
        timeout: seconds without a response after which the call fails.
        identity: which cluster the leaders must belong to.

    Raises:
        DataLoss: the log begins after the start of a range.
        GroupSourceError: a leader does not answer, or rejects the fetch; or records are damaged.
    """
    settings = FetchSettings(read_committed=read_committed, fetch_max_bytes=MAX_SCAN_BYTES, poll_timeout=timeout)
    # The leaders have answered before, and no lookup may take longer than the call.
    wire = replace(wire, rack=None, request_timeout=min(wire.request_timeout, timeout))
    task = FetchTask(tuple(ranges), wire, arrow_schema(("topic", "partition")), settings)
    found: set[TopicPartition] = set()
    cluster = Cluster(wire, identity=identity)
    try:
        for rows in TaskReader(task, cluster).batches():
            found |= {TopicPartition(row["topic"], row["partition"]) for row in rows.to_pylist()}
    finally:
        cluster.close()
    return found
