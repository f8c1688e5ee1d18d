"""Record batches (message format v2) as they lie in a Fetch response: their borders, and where to fetch next.

Header layout and meanings: the Kafka protocol guide, "Record Batch". Only the borders are looked for here, in one cheap
pass, so that the next fetch can be under way before the bytes are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_group_source.errors import RecordsError
from spark_group_source.offsets import TopicPartition
from spark_group_source.records.place import Place

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),  # of what follows
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),  # of what follows
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
SIZE = HEADER.itemsize
"""Bytes of a header; the records follow."""

CRC_BEGIN = 21
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
"""Masks of ``attributes``."""

_UP_TO_LENGTH = 12
_UP_TO_MAGIC = 17
_LENGTH_AND_MAGIC = struct.Struct(">i4xb")
_LENGTH_AT = 8
_BASE_OFFSET = struct.Struct(">q")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23


@dataclass(frozen=True, slots=True)
class Frames:
    """The complete record batches of one partition's part of a Fetch response.

    ``positions`` in ``records`` are where each begins, and one more: where the last ends. A broker fills the size that
    was asked for and may cut the last batch. The cut one is left out, as the next fetch begins with it; where there is
    no other, ``next_offset`` is None and ``wanted_bytes`` says what to ask for.
    """

    tp: TopicPartition
    records: memoryview
    positions: Sequence[int]

    def __len__(self) -> int:
        return len(self.positions) - 1

    @property
    def next_offset(self) -> int | None:
        """The offset to fetch next: behind the last complete batch, whatever in it gives rows. None if there is none.

        Control batches, aborted transactions and compaction leave gaps, so no record can tell this.

        Raises:
            CorruptRecords: the batch would end before it begins.
        """
        if not len(self):
            return None
        last = self.positions[-2]
        (base,) = _BASE_OFFSET.unpack_from(self.records, last)
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(self.records, last + _LAST_OFFSET_DELTA_AT)
        if delta < 0:
            raise self.place(last).corrupt(f"its last offset delta is {delta}")
        return int(base + delta + 1)

    @property
    def wanted_bytes(self) -> int | None:
        """Size of the first batch where not even that one is complete, so that a fetch must allow for it.

        None where a batch is complete, and where too little has come to tell.
        """
        if len(self) or len(self.records) < _UP_TO_MAGIC:
            return None
        length, _ = _LENGTH_AND_MAGIC.unpack_from(self.records, _LENGTH_AT)
        return int(length) + _UP_TO_LENGTH

    def place(self, position: int) -> Place:
        """What to call the batch at ``position`` in an error."""
        (base,) = _BASE_OFFSET.unpack_from(self.records, position)
        return Place(self.tp, base)


@dataclass(frozen=True, slots=True)
class Slice:
    """What to decode: the records with ``start <= offset < end`` among those framed.

    ``aborted`` holds the response's aborted transactions as (producer id, first offset); it matters under
    read_committed only.
    """

    frames: Frames
    start: int
    end: int
    aborted: Sequence[tuple[int, int]] = ()


def frames(tp: TopicPartition, records: memoryview) -> Frames:
    """Finds the complete record batches in ``records``. No checksum is computed and nothing is copied.

    Raises:
        CorruptRecords: a length cannot be.
        UnsupportedRecords: a batch is in another message format than v2.
    """
    available = len(records)
    positions = [0]
    position = 0
    while position + _UP_TO_MAGIC <= available:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(records, position + _LENGTH_AT)
        if magic != 2 or length < SIZE - _UP_TO_LENGTH:
            raise _unreadable(Frames(tp, records, positions).place(position), magic, length)
        position += length + _UP_TO_LENGTH
        if position > available:
            break
        positions.append(position)
    return Frames(tp, records, positions)


def _unreadable(place: Place, magic: int, length: int) -> RecordsError:
    if magic in (0, 1):
        return place.unsupported(
            f"is in message format v{magic}, which producers before Kafka 0.11 wrote",
            "Start behind those records, or copy them with a Kafka 3 client (MirrorMaker) to a topic to read instead.",
        )
    if magic == 2:
        return place.corrupt(f"its length is {length}, and a header alone has {SIZE - _UP_TO_LENGTH}")
    return place.unsupported(
        f"is in message format v{magic}, and only v2 is known",
        "Upgrade this package if the broker has a newer format; otherwise the bytes are damaged.",
    )
