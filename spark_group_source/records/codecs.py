"""Decompression of a record batch, in parts, with the codecs of pyarrow."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from spark_group_source.errors import UnsupportedRecords
from spark_group_source.records.batches import BatchLocation
from spark_group_source.varints import decode_unsigned

_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}
_NONE, _SNAPPY = 0, 2

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # the magic and two version numbers, which some producers write little-endian; not checked
_BLOCK = struct.Struct(">i")
_MAX_SNAPPY_RATIO = 22  # the densest element of the format expands three bytes to 64


class BatchBody:
    """The bytes of a record batch's records, decompressed as they are read.

    Args:
        codec: the number in the attributes of the record batch: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        payload: the bytes after the header.
        limit: maximum size in bytes of the decompressed records.
        location: of the record batch, for errors.

    Raises:
        UnsupportedRecords: the codec is unknown.
    """

    def __init__(self, codec: int, payload: memoryview, limit: int, location: BatchLocation) -> None:
        self._codec = codec
        self._payload = payload
        self._limit = limit
        self._location = location
        self._read = 0
        if codec in _STREAMS:
            self._read_some = pa.CompressedInputStream(pa.BufferReader(payload), _STREAMS[codec]).readinto
        elif codec in (_NONE, _SNAPPY):
            self._read_some = _Pieces(_snappy(payload, limit) if codec else iter([payload])).readinto
        else:
            raise location.unsupported(f"has the unknown compression codec {codec}", "Upgrade this package.")

    def read_into(self, target: memoryview) -> int:
        """Fills ``target`` with the next bytes; returns their number, which is smaller only at the end.

        Raises:
            CorruptRecords: the payload is damaged.
            UnsupportedRecords: the records exceed the limit.
        """
        filled = 0
        try:
            while filled < len(target) and (size := self._read_some(target[filled:])):
                filled += size
        except _TooLarge:
            raise self._too_large() from None
        except (OSError, ValueError, IndexError) as error:
            codec = _STREAMS.get(self._codec, "snappy")
            raise self._location.corrupt(f"its {codec} data cannot be decompressed ({error})") from error
        self._read += filled
        if self._read > self._limit:
            raise self._too_large()
        return filled

    def _too_large(self) -> UnsupportedRecords:
        return self._location.unsupported(
            f"has {len(self._payload)} bytes{' that decompress to' if self._codec else ','} more than {self._limit}",
            "Reduce batch.size of its producer, or start after this record batch.",
        )


class _TooLarge(Exception):
    pass


class _Pieces:
    """Reads pieces of memory one after the other."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readinto(self, target: memoryview) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _snappy(payload: memoryview, limit: int) -> Iterator[memoryview]:
    """Decompresses the raw format of librdkafka, or the frames of snappy-java."""
    if payload[: len(_XERIAL)] != _XERIAL:
        yield _snappy_block(payload, limit)
        return
    position = _XERIAL_HEADER
    while position < len(payload):
        if position + _BLOCK.size > len(payload):
            raise ValueError("the length of a block is incomplete")
        (length,) = _BLOCK.unpack_from(payload, position)
        position += _BLOCK.size
        if not 0 <= length <= len(payload) - position:
            raise ValueError(f"a block of {length} bytes, with {len(payload) - position} left")
        block = _snappy_block(payload[position : position + length], limit)
        limit -= len(block)
        position += length
        yield block


def _snappy_block(block: memoryview, limit: int) -> memoryview:
    size, _ = decode_unsigned(block, 0)
    if size > len(block) * _MAX_SNAPPY_RATIO:
        raise ValueError(f"a block of {len(block)} bytes cannot expand to {size}")
    if size > limit:
        raise _TooLarge
    return memoryview(pa.Codec("snappy").decompress(block, size)).cast("B")  # the bytes of an Arrow buffer are signed
