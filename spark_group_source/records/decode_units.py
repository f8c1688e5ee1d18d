"""Decode units: records that are decoded together.

A unit gathers records of many record batches, so that numpy decodes them together, whatever their partitions. The
records of a unit lie in one piece of memory: the response itself, or the decompressed records one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_group_source.records.batches import BatchLocation, PartitionRecords
from spark_group_source.records.boundaries import MAX_VARINT_SIZE, MIN_RECORD_SIZE, Longs, Memory, find_record_starts
from spark_group_source.records.codecs import BatchBody


@dataclass(frozen=True, slots=True)
class UnitBatches:
    """The record batches of a decode unit: their headers, and the index of each one's partition in ``partitions``."""

    headers: npt.NDArray[np.void]
    partitions: Sequence[PartitionRecords]
    partition_of: npt.NDArray[np.intp]

    def location(self, batch: int) -> BatchLocation:
        """The location of record batch number ``batch``, for an error."""
        tp = self.partitions[self.partition_of[batch]].batches.tp
        return BatchLocation(tp, int(self.headers["base_offset"][batch]))


@dataclass(frozen=True, slots=True)
class DecodeUnit:
    """Records: record ``i`` is ``memory[starts[i]:ends[i]]``, and ``batch[i]`` is its index in ``batches``."""

    memory: Memory
    starts: Longs
    ends: Longs
    batch: Longs
    batches: UnitBatches

    def rows(self, rows: slice) -> DecodeUnit:
        """Some of the records."""
        return DecodeUnit(self.memory, self.starts[rows], self.ends[rows], self.batch[rows], self.batches)


def first_true(mask: npt.NDArray[np.bool_]) -> int | None:
    """The index of the first true value of a mask; ``None`` if all are false."""
    found = np.flatnonzero(mask)
    if not len(found):
        return None
    return int(found[0])


def whole_batches_unit(memory: Memory, starts: Longs, ends: Longs, batches: UnitBatches) -> DecodeUnit:
    """A decode unit of whole record batches, each between its start and end in ``memory``, in ascending order.

    Raises:
        CorruptRecords: the count in a header is wrong, or bytes follow the last record.
    """
    counts = batches.headers["count"].astype(np.int64)
    sizes = ends - starts
    bad = first_true(counts > sizes // MIN_RECORD_SIZE)
    if bad is not None:
        raise batches.location(bad).corrupt(f"{counts[bad]} records do not fit in {sizes[bad]} bytes")
    record_starts, next_starts = find_record_starts(memory, starts, ends, int(counts.sum()))
    first_records = np.append(np.searchsorted(record_starts, starts), len(record_starts))
    bad = first_true((next_starts != ends) | (np.diff(first_records) != counts))
    if bad is not None:
        raise batches.location(bad).corrupt(f"its {counts[bad]} records do not fill its {sizes[bad]} bytes")
    record_ends = np.append(record_starts[1:], 0)
    record_ends[first_records[1:] - 1] = ends
    return DecodeUnit(memory, record_starts, record_ends, np.repeat(np.arange(len(counts)), counts), batches)


def split_batch(body: BatchBody, begun: memoryview, size: int, batches: UnitBatches) -> Iterator[DecodeUnit]:
    """Decode units of one record batch, each of about ``size`` bytes or of one larger record.

    Args:
        begun: the first bytes of the record batch; ``body`` has the rest.

    Raises:
        CorruptRecords: the count in the header is wrong, or bytes follow the last record.
    """
    count, records_seen, mean_size = int(batches.headers["count"][0]), 0, size
    min_size = max(size, len(begun), MAX_VARINT_SIZE + 1)
    carry, wanted, at_end = begun, min_size, False
    while not at_end:
        memory = np.empty(wanted, np.uint8).data
        memory[: len(carry)] = carry
        filled = len(carry) + body.read_into(memory[len(carry) :])
        at_end = filled < wanted
        memory = memory[:filled]
        # The length of a record that starts after the limit may be incomplete.
        limit = len(memory) if at_end else len(memory) - MAX_VARINT_SIZE
        starts, next_starts = find_record_starts(memory, np.array([0]), np.array([limit]), limit // mean_size)
        end = int(next_starts[0])
        ends = np.append(starts[1:], end)
        wanted = min_size
        if end > len(memory) and not at_end:
            # A damaged length may claim gigabytes, so memory grows only as bytes arrive.
            wanted = max(min_size, min(end - int(starts[-1]) + MAX_VARINT_SIZE, 4 * len(memory)))
            starts, ends, end = starts[:-1], ends[:-1], int(starts[-1])
        records_seen += len(starts)
        if end < 0 or records_seen > count or (at_end and (end, records_seen) != (len(memory), count)):
            raise batches.location(0).corrupt(f"its {count} records do not fill its bytes")
        if len(starts):
            mean_size = end // len(starts)
            yield DecodeUnit(memory, starts, ends, np.zeros(len(starts), np.int64), batches)
        carry = memory[end:]
