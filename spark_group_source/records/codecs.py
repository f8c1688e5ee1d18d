"""Decompression of a record batch, piece by piece, with the codecs of pyarrow."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from spark_group_source.records.batch_location import BatchLocation

_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_MIN_PIECE_SIZE = 64 * 1024

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # the magic and two version numbers, which some producers write little-endian; not checked
_BLOCK = struct.Struct(">i")
_MAX_SNAPPY_RATIO = 22  # the densest element of the format expands three bytes to 64


def decompress(
    codec: int, payload: memoryview, piece_size: int, limit: int, location: BatchLocation
) -> Iterator[memoryview]:
    """Decompresses the records in ``payload``, in pieces.

    Args:
        codec: the number in the attributes of the record batch: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        piece_size: maximum size of a piece in bytes, at least 64 KiB. A snappy block is one piece, at most 22 times its
            compressed size.
        limit: maximum size in bytes of all pieces.

    Raises:
        CorruptRecords: the payload is damaged.
        UnsupportedRecords: the codec is unknown, or the pieces exceed ``limit``.
    """
    if codec == _SNAPPY:
        pieces = _snappy(payload, limit)
    elif codec in _STREAMS:
        pieces = _stream(_STREAMS[codec], payload, piece_size)
    else:
        raise location.unsupported(f"has the unknown compression codec {codec}", "Upgrade this package.")
    left = limit
    try:
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise _TooLarge
            yield memoryview(piece).cast("B")  # the bytes of an Arrow buffer are signed
    except _TooLarge:
        raise location.unsupported(
            f"has {len(payload)} bytes that decompress to more than {limit} bytes",
            "Reduce batch.size of its producer, or start after this record batch.",
        ) from None
    except (OSError, ValueError) as error:
        raise location.corrupt(f"its {_STREAMS.get(codec, 'snappy')} data cannot be decompressed ({error})") from error


class _TooLarge(Exception):
    pass


def _stream(name: str, payload: memoryview, piece_size: int) -> Iterator[pa.Buffer]:
    stream = pa.CompressedInputStream(pa.BufferReader(payload), name)
    piece_size = max(_MIN_PIECE_SIZE, min(piece_size, 4 * len(payload)))
    while len(piece := stream.read_buffer(piece_size)):
        yield piece


def _snappy(payload: memoryview, limit: int) -> Iterator[pa.Buffer]:
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


def _snappy_block(block: memoryview, limit: int) -> pa.Buffer:
    size = _snappy_size(block)
    if size > len(block) * _MAX_SNAPPY_RATIO:
        raise ValueError(f"a block of {len(block)} bytes cannot expand to {size}")
    if size > limit:
        raise _TooLarge
    return pa.Codec("snappy").decompress(block, size)


def _snappy_size(block: memoryview) -> int:
    """The uncompressed size: a varint at the start of the block."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size
    raise ValueError("the uncompressed size of a block is incomplete")
