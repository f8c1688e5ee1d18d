"""Decompression of a batch's records, piece by piece, with the codecs that pyarrow brings."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from spark_group_source.records.place import Place

_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_STEP = 64 * 1024

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # the magic and two version numbers, not looked at: some producers write them little-endian
_BLOCK = struct.Struct(">i")
_SNAPPY_RATIO = 22  # the densest element of the format turns three bytes into 64


def decompress(codec: int, payload: memoryview, step: int, limit: int, place: Place) -> Iterator[memoryview]:
    """The records in ``payload``, in pieces.

    Args:
        codec: the number in the batch's attributes: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        step: maximum size of a piece, or 64 KiB. A block of snappy is one piece, at most 22 times as large as before.
        limit: maximum number of bytes that may come out.

    Raises:
        CorruptRecords: the payload is damaged.
        UnsupportedRecords: the codec is unknown, or more than ``limit`` bytes come out.
    """
    if codec == _SNAPPY:
        pieces = _snappy(payload, limit)
    elif codec in _STREAMS:
        pieces = _stream(_STREAMS[codec], payload, step)
    else:
        raise place.unsupported(f"is compressed with codec {codec}, which is unknown", "Upgrade this package.")
    left = limit
    try:
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise _TooLarge
            yield memoryview(piece).cast("B")  # Arrow's bytes are signed
    except _TooLarge:
        raise place.unsupported(
            f"has {len(payload)} bytes that decompress to more than {limit}",
            "Let its producer make smaller batches, or start behind it.",
        ) from None
    except (OSError, ValueError) as error:
        raise place.corrupt(f"its {_STREAMS.get(codec, 'snappy')} data cannot be decompressed ({error})") from error


class _TooLarge(Exception):
    pass


def _stream(name: str, payload: memoryview, step: int) -> Iterator[pa.Buffer]:
    stream = pa.CompressedInputStream(pa.BufferReader(payload), name)
    step = max(_STEP, min(step, 4 * len(payload)))
    while len(piece := stream.read_buffer(step)):
        yield piece


def _snappy(payload: memoryview, limit: int) -> Iterator[pa.Buffer]:
    """Raw as librdkafka writes it, or in the frames of Java's snappy-java."""
    if payload[: len(_XERIAL)] != _XERIAL:
        yield _snappy_block(payload, limit)
        return
    position = _XERIAL_HEADER
    while position < len(payload):
        if position + _BLOCK.size > len(payload):
            raise ValueError("the length of a block is cut")
        (length,) = _BLOCK.unpack_from(payload, position)
        position += _BLOCK.size
        if not 0 <= length <= len(payload) - position:
            raise ValueError(f"a block of {length} bytes where {len(payload) - position} are left")
        block = _snappy_block(payload[position : position + length], limit)
        limit -= len(block)
        position += length
        yield block


def _snappy_block(block: memoryview, limit: int) -> pa.Buffer:
    size = _snappy_size(block)
    if size > len(block) * _SNAPPY_RATIO:
        raise ValueError(f"{len(block)} bytes say that they were {size}")
    if size > limit:
        raise _TooLarge
    return pa.Codec("snappy").decompress(block, size)


def _snappy_size(block: memoryview) -> int:
    """What the block begins with: a varint, the size before compression."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size
    raise ValueError("the size of a block is cut")
