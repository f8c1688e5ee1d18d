"""What one Spark task reads, and how."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_group_source.offsets import OffsetRange
from spark_group_source.wire.settings import WireOptions


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Ranges of offsets and everything needed to read them on an executor; picklable. Sizes in bytes, times in seconds.

    ``schema`` has the columns that are built, of :mod:`spark_group_source.records.columns`.
    ``max_bytes`` is the size of a fetch response, which bounds the memory of a task: the broker exceeds it only for a
    single record batch that is larger. ``patience`` is how long a task goes without progress before it fails. There is
    one range of a partition at most.
    """

    ranges: tuple[OffsetRange, ...]
    wire: WireOptions
    schema: pa.Schema
    read_committed: bool = False
    check_crcs: bool = True
    fail_on_data_loss: bool = True
    max_bytes: int = 4 * 2**20
    max_wait: float = 0.5
    patience: float = 120.0

    def __post_init__(self) -> None:
        # A fetch names each partition once, and its answer tells ranges apart by partition alone.
        if len({each.tp for each in self.ranges}) < len(self.ranges):
            raise ValueError(f"two ranges of one partition: {', '.join(map(str, self.ranges))}")
