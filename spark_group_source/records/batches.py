"""Record batches (message format v2) in a Fetch response: their boundaries, and the offset to fetch next.

Kafka's protocol guide describes the header under "Record Batch". One fast pass finds the boundaries, so the reader can
send the next fetch before it decodes these bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_group_source.errors import CorruptRecords, RecordsError, UnsupportedRecords
from spark_group_source.offsets import TopicPartition
from spark_group_source.records.offset_ranges import OffsetRanges

if TYPE_CHECKING:
    from spark_group_source.records.boundaries import Longs, Memory


class BatchLocation(NamedTuple):
    """The partition and base offset of a record batch."""

    tp: TopicPartition
    base_offset: int

    def corrupt(self, damage: str) -> CorruptRecords:
        """The error for a record batch with damaged bytes."""
        return CorruptRecords(
            f"The record batch of {self.tp} at offset {self.base_offset} is damaged: {damage}.",
            "If this repeats, the broker's copy is damaged: compare it with the other replicas"
            " (kafka-dump-log.sh --deep-iteration), or start after this record batch.",
        )

    def unsupported(self, problem: str, action: str) -> UnsupportedRecords:
        """The error for a record batch that this source cannot read."""
        return UnsupportedRecords(f"The record batch of {self.tp} at offset {self.base_offset} {problem}.", action)


HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),  # of the bytes after this field
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),  # of the bytes after this field
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("first_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
HEADER_SIZE = HEADER.itemsize
"""Size of a header in bytes; the records follow."""

CRC_START = 21
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
"""Masks of ``attributes``."""


def headers_at(memory: Memory, starts: Longs) -> npt.NDArray[np.void]:
    """The headers that begin at these positions."""
    # A view with a header at every byte: selecting from it is forty times faster than slicing the memory.
    size = max(len(memory) - HEADER_SIZE + 1, 0)
    overlapping: npt.NDArray[np.void] = np.ndarray(size, f"V{HEADER_SIZE}", memory, strides=(1,))
    headers: npt.NDArray[np.void] = overlapping[starts].view(HEADER)
    return headers


_SIZE_UP_TO_LENGTH = 12
_SIZE_UP_TO_MAGIC = 17
_LENGTH_AND_MAGIC = struct.Struct(">i4xb")
_LENGTH_AT = 8
_BASE_OFFSET = struct.Struct(">q")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23


@dataclass(frozen=True, slots=True)
class RecordBatches:
    """The complete record batches of one partition in a Fetch response.

    ``boundaries`` holds the position of each record batch in ``records``, and the end of the last one. A broker may cut
    the last record batch to fit the requested size. That record batch is left out; the next fetch starts with it. If no
    record batch is complete, ``next_offset`` is None, and ``incomplete_batch_size`` is the size to request.

    ``damage`` is the error of the first unreadable header after these record batches.
    """

    tp: TopicPartition
    records: memoryview
    boundaries: Sequence[int]
    damage: RecordsError | None = None

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    @property
    def next_offset(self) -> int | None:
        """The offset after the last complete record batch; None if there is none.

        Control batches, aborted transactions and compaction leave gaps, so the last record does not show this offset.

        Raises:
            CorruptRecords: the record batch would end before its first offset.
        """
        if not len(self):
            return None
        return self._next_offset(len(self) - 1)

    def between(self, start: int, end: int) -> RecordBatches:
        """The record batches with offsets in ``[start, end)``, without a copy."""
        first = bisect_right(range(len(self)), start, key=self._next_offset)
        last = max(first, bisect_left(range(len(self)), end, key=self.base_offset))
        return self._part(first, last)

    def _part(self, first: int, last: int) -> RecordBatches:
        """The record batches of these indexes, without a copy."""
        if (first, last) == (0, len(self)) and self.damage is None:
            return self
        origin, end = self.boundaries[first], self.boundaries[last]
        boundaries = [each - origin for each in self.boundaries[first : last + 1]]
        return RecordBatches(self.tp, self.records[origin:end], boundaries)

    def reliable(self, start: int, end: int, high_watermark: int) -> RecordBatches:
        """The record batches whose headers do not contradict each other, of a response that was fetched from ``start``.

        Their checksums do not cover the base offset and the length. A wrong base offset or length would hide record
        batches, or give records other offsets. But record batches do not overlap, and the first one holds the offset
        ``start`` or comes after it. Compaction may leave a gap before a record batch, and a wrong base offset may look
        like such a gap. So if a gap precedes the last record batch of a response, that record batch is left to the next
        fetch, which also brings the one after it.

        Record batches that end before ``start`` are left out. Kafka sends no such record batches, and its clients skip
        them. If there are no others, the result is empty.

        Args:
            start: the first offset that is needed.
            end: the end of the needed range. Damage after it is ignored, and only cuts off the record batches.
            high_watermark: the high watermark in the response. A broker reads it before the records, so these may end
                after it. They are committed nevertheless, because the broker reads no further than its high watermark
                    at that moment: no election of an in-sync replica takes them back. (UnifiedLog.read in Kafka)

        Raises:
            CorruptRecords: a header that the range needs is damaged.
            UnsupportedRecords: a record batch that the range needs is in another format.
        """
        offsets = self._offset_ranges(start)
        earlier = self._count_earlier(offsets)
        found, offsets = self._part(earlier, len(self)), offsets.behind(earlier)
        if not len(found):
            if self.damage is not None:
                raise self._unreadable_header(self.damage, start, high_watermark)
            return found
        count = offsets.count_sound()
        if count < len(found):
            return found._before_contradiction(offsets, count, end)
        covered = offsets.end_of_first(count)
        if covered < end and self.damage is not None:
            raise self._unreadable_header(self.damage, covered, high_watermark)
        if offsets.contiguous[-1]:
            return found._part(0, count)
        return found._confirmed_behind_gap(covered, end, high_watermark)

    def _before_contradiction(self, offsets: OffsetRanges, count: int, end: int) -> RecordBatches:
        """The first ``count`` record batches: the next one contradicts those around it.

        Raises:
            CorruptRecords: the range needs the next one, or that one may hide offsets of the range.
        """
        covered = offsets.end_of_first(count)
        if covered < end or offsets.may_hide_next(count, end):
            raise BatchLocation(self.tp, covered).corrupt("its header contradicts those before and after it")
        return self._part(0, count)

    def _confirmed_behind_gap(self, covered: int, end: int, high_watermark: int) -> RecordBatches:
        """The record batches without the last one, if a gap precedes it and the next record batch has still to confirm
        it.

        Args:
            covered: the offset after the last one.
            end: the end of the needed range, which was below the high watermark when it was planned.

        Raises:
            CorruptRecords: it is the only record batch, and ends after ``end`` and the high watermark. Compaction works
                below the high watermark.
        """
        count = len(self)
        if covered == high_watermark:
            return self  # it is the last one of the log
        if count > 1:
            return self._part(0, count - 1)
        if covered > max(high_watermark, end):
            damage = f"it ends at {covered}, behind the high watermark {high_watermark}, and a gap precedes it"
            raise self.location(0).corrupt(damage)
        return self

    def _count_earlier(self, offsets: OffsetRanges) -> int:
        """How many record batches at the front end before the first offset that is needed.

        Raises:
            CorruptRecords: the next record batch begins after that offset, so a wrong base offset may hide one in
                between.
        """
        count = offsets.count_earlier()
        if 0 < count < len(self) and offsets.bases[count] > offsets.start:
            raise BatchLocation(self.tp, offsets.start).corrupt("its header contradicts those before and after it")
        return count

    def _offset_ranges(self, start: int) -> OffsetRanges:
        headers = headers_at(self.records, np.array(self.boundaries[:-1], np.int64))
        bases = headers["base_offset"].astype(np.int64)
        return OffsetRanges(start, bases, bases + headers["last_offset_delta"] + 1)

    def _unreadable_header(self, damage: RecordsError, covered: int, high_watermark: int) -> RecordsError:
        """The error for the header behind the last record batch, whose offsets end before ``covered``."""
        at = self.location(self.boundaries[-1]).base_offset
        if covered == at or covered < at < high_watermark:
            return damage
        # A wrong length leads to bytes that are no header, whose offset and format would mislead.
        return BatchLocation(self.tp, covered).corrupt("no header of a record batch is where the one before it ends")

    def base_offset(self, index: int) -> int:
        """The offset of the first record of a record batch when it was written."""
        (base_offset,) = _BASE_OFFSET.unpack_from(self.records, self.boundaries[index])
        return int(base_offset)

    def _next_offset(self, index: int) -> int:
        at = self.boundaries[index]
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(self.records, at + _LAST_OFFSET_DELTA_AT)
        if delta < 0:
            raise self.location(at).corrupt(f"its last offset delta is {delta}")
        return self.base_offset(index) + int(delta) + 1

    @property
    def incomplete_batch_size(self) -> int | None:
        """Size in bytes of the first record batch if even that one is incomplete.

        None if a record batch is complete, or if the broker sent too few bytes to know.
        """
        if len(self) or len(self.records) < _SIZE_UP_TO_MAGIC:
            return None
        length, _ = _LENGTH_AND_MAGIC.unpack_from(self.records, _LENGTH_AT)
        return int(length) + _SIZE_UP_TO_LENGTH

    def location(self, position: int) -> BatchLocation:
        """The location of the record batch at ``position``, for an error."""
        (base_offset,) = _BASE_OFFSET.unpack_from(self.records, position)
        return BatchLocation(self.tp, base_offset)


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Record batches of one partition, of which the records with ``start <= offset < end`` are decoded.

    ``aborted`` holds the response's aborted transactions as (producer id, first offset). Only read_committed uses it.
    """

    batches: RecordBatches
    start: int
    end: int
    aborted: Sequence[tuple[int, int]] = ()


def find_record_batches(tp: TopicPartition, records: memoryview) -> RecordBatches:
    """Finds the complete record batches in ``records``, without a checksum and without a copy.

    Raises:
        CorruptRecords: the first length is impossible.
        UnsupportedRecords: the first record batch has another message format than v2.
    """
    available = len(records)
    boundaries = [0]
    position = 0
    while position + _SIZE_UP_TO_MAGIC <= available:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(records, position + _LENGTH_AT)
        if magic != 2 or length < HEADER_SIZE - _SIZE_UP_TO_LENGTH:
            damage = _unreadable(RecordBatches(tp, records, boundaries).location(position), magic, length)
            if not position:
                raise damage
            return RecordBatches(tp, records, boundaries, damage)
        position += length + _SIZE_UP_TO_LENGTH
        if position > available:
            break
        boundaries.append(position)
    return RecordBatches(tp, records, boundaries)


def _unreadable(location: BatchLocation, magic: int, length: int) -> RecordsError:
    if magic in (0, 1):
        return location.unsupported(
            f"is in message format v{magic}. This source reads v2, which Kafka 0.11 introduced. A topic has v{magic} if"
            " a producer before 0.11 wrote to it, or if its message.format.version (log.message.format.version of the"
            " brokers) was below 0.11 when the records came, whatever the producer was",
            "Kafka 4 removed these settings; before, set them to the release of the brokers, so that new records are in"
            " v2. Brokers of all releases send stored records as they are: copy them to another topic with a client of"
            " Kafka's (MirrorMaker) and read that topic, or start after them.",
        )
    if magic == 2:
        return location.corrupt(f"its length is {length}, and a header alone has {HEADER_SIZE - _SIZE_UP_TO_LENGTH}")
    return location.unsupported(
        f"is in message format v{magic}, and this source reads only v2",
        "Upgrade this package if the broker has a newer format; otherwise the bytes are damaged.",
    )
