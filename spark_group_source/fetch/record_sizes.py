"""The sizes of a partition's records and record batches, learned from its last response."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from spark_group_source.records.record_batches import RecordBatches

ESTIMATED_RECORD_SIZE = 1024
"""Estimated size in bytes of a record of a partition without a response yet."""
MIN_FETCH = 64 * 1024
"""Size in bytes that a fetch of one partition may ask for in any case."""
READ_AHEAD = 4
"""How many times the size of a small range a fetch asks for. A response that holds the next ranges too saves requests.
If another executor reads them, more would be wasted."""
MIN_READ_AHEAD = 8192
"""Minimum size in bytes of such a fetch. For smaller ranges the next fetch costs less than what it saves."""
MAX_PARTITIONS = 100_000
"""Maximum number of partitions whose sizes a worker keeps."""

_known: dict[tuple[str, int], RecordSizes] = {}


@dataclass(slots=True)
class RecordSizes:
    """Sizes in bytes; 0 before the first response.

    ``bytes_per_offset`` is the mean size of a record, with its share of the header, as stored: compressed, and with
    gaps. ``largest_batch`` is the size of the largest record batch of the last response.
    """

    bytes_per_offset: float = 0.0
    largest_batch: int = 0

    def observe(self, batches: RecordBatches) -> None:
        """Learns from a response with at least one complete record batch."""
        boundaries = batches.boundaries
        sizes = [end - start for start, end in pairwise(boundaries)]
        self.largest_batch = max(sizes)
        next_offset = batches.next_offset
        assert next_offset is not None
        self.bytes_per_offset = boundaries[-1] / (next_offset - batches.base_offset(0))

    def fetch_bytes(self, offsets: int, limit: int, max_read_ahead: int = MIN_FETCH) -> int:
        """The size of a fetch for this number of offsets, from the start of a record batch: within ``limit``.

        A broker cuts the last record batch at the requested size, and the next fetch asks for the whole of it again. So
        the size is one of whole record batches, as if all were the largest.
        """
        if not self.largest_batch:
            return min(max(offsets * ESTIMATED_RECORD_SIZE, max_read_ahead), limit)
        needed = ceil(offsets * self.bytes_per_offset / self.largest_batch) * self.largest_batch
        ahead = min(READ_AHEAD * needed, max_read_ahead)
        # Of small record batches one more: it shows whether the header before it is right.
        wanted = max(needed, ahead) if ahead >= MIN_READ_AHEAD else needed + self.largest_batch
        return min(wanted, limit // self.largest_batch * self.largest_batch or limit)


def sizes_of(topic_id: str, partition: int) -> RecordSizes:
    """The sizes of a partition, which all tasks of this worker share."""
    if len(_known) >= MAX_PARTITIONS:
        _known.clear()
    return _known.setdefault((topic_id, partition), RecordSizes())
