"""The record batches of a whole Fetch response: which ones a task needs, and whether their checksums are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from spark_group_source.records.batches import (
    CODEC,
    CRC_START,
    HEADER_SIZE,
    BatchLocation,
    PartitionRecords,
    headers_at,
)
from spark_group_source.records.boundaries import Longs, decode_varint
from spark_group_source.records.codecs import BatchBody
from spark_group_source.records.decode_units import DecodeUnit, UnitBatches, first_true, split_batch, whole_batches_unit
from spark_group_source.records.transactions import visible_batches

_NONE = np.empty(0, np.int64)
_MAX_MARKER_SIZE = 100
"""Bytes that always hold a transaction marker."""


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits on the memory of one decoding step, whatever a producer sends.

    ``unit_bytes``: maximum size in bytes of a decode unit, a quarter if decompressed; one larger record exceeds it.
    ``rows``: maximum number of rows of an Arrow batch or unit, because the fields of a small record take more memory.
    ``headers``: maximum number of headers in one Arrow batch, and in one record. ``batch_bytes``: maximum size, below
    2 GiB, of a decompressed record batch in bytes; it bounds the size of a record, and the CPU time.
    """

    unit_bytes: int = 16 * 2**20
    rows: int = 2**16
    headers: int = 2**20
    batch_bytes: int = 512 * 2**20

    def scratch(self) -> memoryview:
        """Memory for a decode unit of decompressed records, and one byte more. It takes no time until it is used."""
        return np.empty(self.unit_bytes // 4 + 1, np.uint8).data


class ResponseBatches:
    """All record batches of a response, in the order of its partitions.

    ``scratch`` is the memory of :meth:`DecodeLimits.scratch`. The next unit of decompressed records overwrites it.
    """

    def __init__(
        self,
        partitions: Sequence[PartitionRecords],
        *,
        read_committed: bool,
        check_crcs: bool,
        limits: DecodeLimits,
        scratch: memoryview | None = None,
    ) -> None:
        self._partitions = partitions
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._limits = limits
        if scratch is None:
            scratch = limits.scratch()
        self._scratch = scratch
        batches = [partition.batches for partition in partitions]
        self._memory, origins = _one_memory([each.records for each in batches])
        self._partition_of = np.repeat(np.arange(len(partitions)), [len(each) for each in batches])
        boundaries = [np.array(each.boundaries, np.int64) + at for each, at in zip(batches, origins, strict=True)]
        self._starts = np.concatenate([_NONE, *[each[:-1] for each in boundaries]])
        self._ends = np.concatenate([_NONE, *[each[1:] for each in boundaries]])
        self._headers = headers_at(self._memory, self._starts)
        self._codecs = self._headers["attributes"] & CODEC

    def decode_units(self) -> Iterator[DecodeUnit]:
        """The verified and decompressed records of the record batches that give rows.

        Raises:
            CorruptRecords, UnsupportedRecords: a record batch with offsets of a range cannot be read.
        """
        needed = np.flatnonzero(self._needed())
        if self._codecs[needed].any():
            return self._decompressed_units(needed)
        return self._uncompressed_units(needed)

    def _uncompressed_units(self, needed: Longs) -> Iterator[DecodeUnit]:
        """Units in the response itself. A record batch larger than a unit is split, and copied only at the borders."""
        starts, ends = self._starts[needed] + HEADER_SIZE, self._ends[needed]
        sizes, counts = np.cumsum(ends - starts), np.cumsum(self._headers["count"][needed], dtype=np.int64)
        first = size = count = 0
        while first < len(needed):
            last = int(np.searchsorted(sizes, size + self._limits.unit_bytes, side="right"))
            last = min(last, int(np.searchsorted(counts, count + self._limits.rows, side="right")))
            whole = last > first or sizes[first] - size < len(self._scratch)
            last = max(last, first + 1)
            batches = self._unit_batches(needed[first:last])
            if whole:
                yield whole_batches_unit(self._memory, starts[first:last], ends[first:last], batches)
            else:
                body = self._body(int(needed[first]))
                yield from split_batch(body, memoryview(b""), len(self._scratch), batches)
            first, size, count = last, sizes[last - 1], counts[last - 1]

    def _decompressed_units(self, needed: Longs) -> Iterator[DecodeUnit]:
        """Units of as many record batches as fit in one memory, which each unit overwrites. A larger record batch is
        split."""
        memory = self._scratch
        picked: list[int] = []
        ends = [0]
        for index in needed.tolist():
            body = self._body(index)
            start = ends[-1]
            filled = start + body.read_into(memory[start:])
            if filled == len(memory) and picked:
                # The record batch may be incomplete: it begins the next unit.
                yield self._joined_unit(memory, picked, ends)
                begun = filled - start
                memory[:begun] = bytes(memory[start:filled])
                picked, ends = [], [0]
                filled = begun + body.read_into(memory[begun:])
            if filled == len(memory):
                batches = self._unit_batches(np.array([index]))
                yield from split_batch(body, memory, len(memory), batches)
                continue
            picked.append(index)
            ends.append(filled)
        if picked:
            yield self._joined_unit(memory, picked, ends)

    def _joined_unit(self, memory: memoryview, picked: list[int], ends: list[int]) -> DecodeUnit:
        bounds = np.array(ends, np.int64)
        return whole_batches_unit(memory[: ends[-1]], bounds[:-1], bounds[1:], self._unit_batches(np.array(picked)))

    def _needed(self) -> npt.NDArray[np.bool_]:
        """Which record batches have visible records in the requested range."""
        base_offsets = self._headers["base_offset"].astype(np.int64)
        deltas, counts = self._headers["last_offset_delta"], self._headers["count"]
        starts = np.array([partition.start for partition in self._partitions], np.int64)[self._partition_of]
        ends = np.array([partition.end for partition in self._partitions], np.int64)[self._partition_of]
        before_end = base_offsets < ends
        # A header is verified before it is used, because it may hide records. The base offset of the next record batch
        # shows that a record batch lies before the range.
        before_start = np.zeros(len(starts), np.bool_)
        before_start[:-1] = (base_offsets[1:] <= starts[:-1]) & (np.diff(self._partition_of) == 0)
        self._verify(np.flatnonzero(before_end & ~before_start))
        self._check_counts(before_end)
        needed = self._visible(before_end)
        needed &= before_end & (base_offsets + deltas >= starts) & (counts > 0)
        return needed

    def _check_counts(self, batches: npt.NDArray[np.bool_]) -> None:
        """Checks the counts of these record batches that decide whether their bytes are decoded at all.

        Compaction keeps an empty header for an idempotent producer. A count of 0 although records follow would hide
        these records: Kafka's consumer reads such a record batch as empty.
        """
        counts, deltas = self._headers["count"], self._headers["last_offset_delta"]
        bad = first_true(batches & ((deltas < 0) | (counts < 0)))
        if bad is not None:
            raise self._location(bad).corrupt(f"it has {counts[bad]} records and a last offset delta of {deltas[bad]}")
        record_bytes = self._ends - self._starts - HEADER_SIZE
        bad = first_true(batches & (counts == 0) & (record_bytes > 0))
        if bad is not None:
            raise self._location(bad).corrupt(f"it has {record_bytes[bad]} bytes of records, and a count of 0")

    def _visible(self, before_end: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        visible = visible_batches(self._headers, (), self._marker_type)
        first = 0
        for partition in self._partitions:
            end = first + len(partition.batches)
            if self._read_committed and partition.aborted:
                marker_type = partial(self._marker_type, first=first)
                last = first + int(np.count_nonzero(before_end[first:end]))  # base offsets ascend
                visible[first:last] = visible_batches(self._headers[first:last], partition.aborted, marker_type)
            first = end
        return visible

    def _verify(self, batches: Longs) -> None:
        """Compares the checksums of these record batches."""
        if not self._check_crcs:
            return
        view = memoryview(self._memory)
        starts, ends = self._starts[batches] + CRC_START, self._ends[batches]
        computed = [crc32c(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        expected = self._headers["crc"][batches]
        bad = first_true(expected != np.array(computed, np.uint32))
        if bad is not None:
            damage = f"its CRC-32C is {computed[bad]:#010x} and not {expected[bad]:#010x}"
            raise self._location(int(batches[bad])).corrupt(damage)

    def _body(self, index: int) -> BatchBody:
        """The records of a record batch."""
        payload = memoryview(self._memory)[self._starts[index] + HEADER_SIZE : self._ends[index]]
        return BatchBody(int(self._codecs[index]), payload, self._limits.batch_bytes, self._location(index))

    def _unit_batches(self, picked: Longs) -> UnitBatches:
        return UnitBatches(self._headers[picked], self._partitions, self._partition_of[picked])

    def _marker_type(self, index: int, first: int = 0) -> int | None:
        """The marker in a control batch: 0 ABORT, 1 COMMIT; None if compaction removed it.

        ``index`` counts from ``first``, the first record batch of the partition.
        """
        index += first
        if not self._headers["count"][index]:
            return None
        body = bytearray(_MAX_MARKER_SIZE)
        del body[self._body(index).read_into(memoryview(body)) :]
        try:
            _, position = decode_varint(body, 0)
            _, position = decode_varint(body, position + 1)  # after the attributes: the timestamp delta
            _, position = decode_varint(body, position)  # the offset delta
            _, position = decode_varint(body, position)  # the key length; the key is a version and the type, int16 each
            return body[position + 2] << 8 | body[position + 3]
        except IndexError as error:
            raise self._location(index).corrupt("its transaction marker is incomplete") from error

    def _location(self, index: int) -> BatchLocation:
        tp = self._partitions[self._partition_of[index]].batches.tp
        return BatchLocation(tp, int(self._headers["base_offset"][index]))


def _one_memory(parts: Sequence[memoryview]) -> tuple[bytes | bytearray, list[int]]:
    """One memory with all parts in order, and the position of each part in it.

    Parts of one response already lie in one memory; others are copied.
    """
    if not parts:
        return b"", []
    owner = parts[0].obj
    if isinstance(owner, (bytes, bytearray)) and all(part.obj is owner for part in parts):
        origin = _address(memoryview(owner))
        starts = [_address(part) - origin for part in parts]
        if _are_in_order(starts, parts):
            return owner, starts
    sizes = [len(part) for part in parts]
    return b"".join(parts), [0, *np.cumsum(sizes[:-1]).tolist()]


def _are_in_order(starts: Sequence[int], parts: Sequence[memoryview]) -> bool:
    """Whether each part begins behind the end of the part before it."""
    end = 0
    for start, part in zip(starts, parts, strict=True):
        if start < end:
            return False
        end = start + len(part)
    return True


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
