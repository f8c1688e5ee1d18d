"""What one Spark task reads, and how."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_group_source.offsets import OffsetRange
from spark_group_source.wire.settings import WireOptions

MOST_BYTES = 2**29
"""Bytes that a fetch asks for at most, whatever ``max_bytes`` says: a connection receives 2**30 at most, and an answer
may be one batch larger than asked for."""


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Ranges of offsets and everything needed to read them on an executor; picklable. Sizes in bytes, times in seconds.

    ``schema`` has the columns that are built, of :mod:`spark_group_source.records.columns`.
    ``max_bytes`` is the size of a fetch response, which bounds the memory of a task: the broker exceeds it only for a
    single record batch that is larger. ``max_partition_bytes`` is the part of it that one partition may take, all of
    it where it is ``None``. ``min_bytes`` is what a broker waits for, up to ``max_wait``. With a ``rack`` the replica
    is read that the leader finds nearest to it, for ``replica_max_age`` before the leader is asked again. ``patience``
    is how long a task goes without progress before it fails. There is one range of a partition at most.
    """

    ranges: tuple[OffsetRange, ...]
    wire: WireOptions
    schema: pa.Schema
    read_committed: bool = False
    check_crcs: bool = True
    fail_on_data_loss: bool = True
    max_bytes: int = 4 * 2**20
    max_partition_bytes: int | None = None
    min_bytes: int = 1
    max_wait: float = 0.5
    rack: str | None = None
    replica_max_age: float = 300.0
    patience: float = 120.0

    @property
    def answer_bytes(self) -> int:
        """Most bytes that a fetch asks for."""
        return min(self.max_bytes, MOST_BYTES)

    @property
    def most_bytes(self) -> int:
        """Most bytes that a fetch asks of one partition."""
        return min(self.answer_bytes, self.max_partition_bytes or self.max_bytes)

    def __post_init__(self) -> None:
        # A fetch names each partition once, and its answer tells ranges apart by partition alone.
        if len({each.tp for each in self.ranges}) < len(self.ranges):
            raise ValueError(f"two ranges of one partition: {', '.join(map(str, self.ranges))}")
