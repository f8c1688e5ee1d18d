"""Decompression by pyarrow's codecs, in bounded steps."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa

from spark_group_source.errors import CorruptRecords, UnsupportedRecords

LARGEST = 2**30
"""Bytes that one record batch may decompress to: far beyond what producers make, well below what a damaged one claims."""

_STEP = 2**20
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_BLOCK = struct.Struct(">i")

Buffer = bytes | memoryview


def _streamed(name: str) -> Callable[[memoryview], Buffer]:
    def decompress(payload: memoryview) -> Buffer:
        out = bytearray()
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(payload)), name) as stream:
            while part := stream.read(_STEP):
                out += part
                if len(out) > LARGEST:
                    raise CorruptRecords(f"A record batch decompresses to more than {LARGEST} bytes.")
        return memoryview(out)

    return decompress


def _snappy(payload: memoryview) -> Buffer:
    """Java frames its blocks in the way of xerial's library; others write one block."""
    if payload[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(payload)
    at, out = _XERIAL_HEADER, bytearray()
    while at < len(payload):
        (size,) = _BLOCK.unpack_from(payload, at)
        at += _BLOCK.size
        if size < 0 or at + size > len(payload):
            raise CorruptRecords(f"A block of snappy claims {size} bytes where {len(payload) - at} are left.")
        out += _snappy_block(payload[at : at + size])
        at += size
        if len(out) > LARGEST:
            raise CorruptRecords(f"A record batch decompresses to more than {LARGEST} bytes.")
    return memoryview(out)


def _snappy_block(block: memoryview) -> Buffer:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    # Snappy cannot shrink its input more than about 21 times: a length beyond that is damage, not a reason to allocate.
    if size > min(LARGEST, 64 + 32 * len(block)):
        raise CorruptRecords(f"A block of snappy of {len(block)} bytes claims to hold {size}.")
    return memoryview(pa.decompress(pa.py_buffer(block), decompressed_size=size, codec="snappy"))


_CODECS: dict[int, tuple[str, Callable[[memoryview], Buffer]]] = {
    1: ("gzip", _streamed("gzip")),
    2: ("snappy", _snappy),
    3: ("lz4", _streamed("lz4")),
    4: ("zstd", _streamed("zstd")),
}


def decompress(codec: int, payload: memoryview) -> Buffer:
    """The records section of a batch; ``codec`` is Kafka's number, 0 for none.

    Raises:
        UnsupportedRecords: the codec is not known.
        CorruptRecords: the bytes are not of that codec, or expand beyond :data:`LARGEST`.
    """
    if codec == 0:
        return payload
    if codec not in _CODECS:
        raise UnsupportedRecords(f"Codec {codec} is not known.", "Is there a later release that reads it?")
    name, expand = _CODECS[codec]
    try:
        return expand(payload)
    except (OSError, pa.ArrowException, struct.error, IndexError) as error:
        raise CorruptRecords(f"A record batch of {len(payload)} bytes cannot be decompressed as {name}: {error}.") from error
