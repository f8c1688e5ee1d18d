"""The work of one Spark task: ranges, and everything needed to read them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_group_source.offsets import OffsetRange
from spark_group_source.wire.settings import WireOptions
from spark_group_source.wire.tokens import ExportedToken

MAX_REQUEST_BYTES = 2**29
"""Maximum size in bytes that a fetch requests, whatever the options say. A connection receives at most 2**30 bytes, and
a response may exceed the requested size by one record batch."""


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Ranges of offsets and everything needed to read them on an executor; picklable. Sizes in bytes, times in seconds.

    ``schema`` has the columns to build, of :mod:`spark_group_source.records.columns`. ``fetch_max_bytes`` is the size
    of a fetch response, which bounds the memory of a task; only a larger single record batch exceeds it.
    ``max_partition_fetch_bytes`` is the part of a response that one partition may take, the whole if None. A broker
    waits for ``min_bytes``, up to ``max_wait``. With a ``rack`` the task reads from the preferred read replica for
    ``replica_max_age`` before it asks the leader again. ``poll_timeout`` is how long a task runs without progress
    before it fails. ``query_id`` identifies the run of a query. Its later tasks read what this one received beyond its
    ranges; without an id nothing is kept. ``token`` is the driver's OAuth token, if it has one. Each
    partition has at most one range.
    """

    ranges: tuple[OffsetRange, ...]
    wire: WireOptions
    schema: pa.Schema
    read_committed: bool = False
    check_crcs: bool = True
    fail_on_data_loss: bool = True
    fetch_max_bytes: int = 4 * 2**20
    max_partition_fetch_bytes: int | None = None
    min_bytes: int = 1
    max_wait: float = 0.5
    rack: str | None = None
    replica_max_age: float = 300.0
    poll_timeout: float = 120.0
    query_id: str = ""
    token: ExportedToken | None = None

    @property
    def max_bytes(self) -> int:
        """Maximum size of a Fetch request (``MaxBytes`` in the protocol)."""
        return min(self.fetch_max_bytes, MAX_REQUEST_BYTES)

    @property
    def partition_max_bytes(self) -> int:
        """Maximum size of one partition in a Fetch request (``PartitionMaxBytes`` in the protocol)."""
        return min(self.max_bytes, self.max_partition_fetch_bytes or self.fetch_max_bytes)

    def __post_init__(self) -> None:
        # A fetch names each partition once, and its response has no other key for a range.
        if len({offset_range.tp for offset_range in self.ranges}) < len(self.ranges):
            raise ValueError(f"two ranges of one partition: {', '.join(map(str, self.ranges))}")
