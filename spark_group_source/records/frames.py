"""The frames of record batches: headers read and checked, payloads left as they are.

The layout is that of message format v2, https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

from spark_group_source.errors import CorruptRecords, UnsupportedRecords

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
HEADER_SIZE = _HEADER.size
PREFIX_SIZE = _PREFIX.size
_MAGIC_AT = 16
_CRC_FROM = 21
"""The CRC covers everything from the attributes on."""

_CODEC_BITS = 0x07
_LOG_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20


class Frame(NamedTuple):
    """One record batch. ``payload`` is its records section as received, compressed where ``codec`` is not 0.

    Timestamps are in milliseconds. ``checked`` is what the CRC covers.
    """

    base_offset: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    count: int
    crc: int
    checked: memoryview
    payload: memoryview

    @property
    def next_offset(self) -> int:
        """The offset behind the batch, whatever of it is visible."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Kafka's number of the compression codec."""
        return self.attributes & _CODEC_BITS

    @property
    def log_append_time(self) -> bool:
        """Whether all records have the time at which the broker appended them."""
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)

    @property
    def transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        """Whether it holds a marker of the broker's, and no records of anybody."""
        return bool(self.attributes & _CONTROL_BIT)

    def check_crc(self) -> None:
        """Raises :class:`CorruptRecords` where the bytes are not those the producer wrote."""
        found = crc32c.crc32c(self.checked)
        if found != self.crc:
            raise CorruptRecords(
                f"The record batch at offset {self.base_offset} has CRC {found:#010x} where {self.crc:#010x} is due.",
                "Its bytes were damaged on disk or on the way. Look at the leader's log with kafka-dump-log.",
            )


def frames(records: memoryview) -> list[Frame]:
    """The complete record batches in the records of one partition; a broker may cut off the last one.

    Raises:
        UnsupportedRecords: a batch is of message format v0 or v1.
        CorruptRecords: a header makes no sense.
    """
    found = []
    at, size = 0, len(records)
    while at + HEADER_SIZE <= size:
        base, length, _, magic, crc, attributes, last, first, most, producer, _, _, count = _HEADER.unpack_from(records, at)
        if magic != 2:
            raise _unreadable(base, magic)
        end = at + PREFIX_SIZE + length
        if length < HEADER_SIZE - PREFIX_SIZE or base < 0 or last < 0 or count < 0:
            raise CorruptRecords(f"The header of the record batch at offset {base} is damaged: {length} bytes, {count} records.")
        if end > size:
            break
        checked, payload = records[at + _CRC_FROM : end], records[at + HEADER_SIZE : end]
        found.append(Frame(base, attributes, last, first, most, producer, count, crc, checked, payload))
        at = end
    if not found and size > _MAGIC_AT and records[_MAGIC_AT] < 2:
        raise _unreadable(_PREFIX.unpack_from(records)[0], records[_MAGIC_AT])
    return found


def _unreadable(offset: int, magic: int) -> Exception:
    if magic in (0, 1):
        return UnsupportedRecords(
            f"The records at offset {offset} are of message format v{magic}.",
            "Kafka 4 has ended these formats. A broker before 4.0 writes v2 with log.message.format.version of 0.11 or"
            " later; copy the topic to bring its old records up.",
        )
    return CorruptRecords(f"The record batch at offset {offset} claims message format v{magic}.")
