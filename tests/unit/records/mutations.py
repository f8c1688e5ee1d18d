"""Damages bytes at random, and repairs lengths and checksums so that the decoder reaches the damage."""

from __future__ import annotations

import itertools
import random
import struct

from kafka.record.util import encode_varint

from tests.unit.records.build import Record, batch, resealed

HEADER = 61
LENGTH_AT, UP_TO_LENGTH = 8, 12
NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 2**15 - 1, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))
"""Positions and sizes of the fields of a record batch header, except the checksum."""


def mutated(rng: random.Random, raw: bytes, others: list[bytes]) -> bytes:
    """``raw`` with one to six pieces of damage, some of them from ``others``."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not found:
            break
        at = rng.randrange(len(found))
        kind = rng.randrange(8)
        if kind == 0:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at] = rng.choice((0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
        elif kind == 2:
            found[at : at + rng.randrange(1, 12)] = b""
        elif kind == 3:
            found[at:at] = rng.choice((rng.randbytes(rng.randrange(1, 12)), b"\xff" * 9, b"\x80" * 10, bytes(8)))
        elif kind == 4:
            del found[at:]
        elif kind == 5:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            found[at : at + rng.randrange(64)] = other[begin : begin + rng.randrange(1, 200)]
        else:
            _overwrite_field(rng, found)
    return bytes(found)


def _overwrite_field(rng: random.Random, raw: bytearray) -> None:
    """Overwrites a header field of a record batch with a critical number."""
    at, size = rng.choice(FIELDS)
    at += rng.choice(_batch_starts(raw))
    number = rng.choice(NUMBERS) + rng.randrange(-1, 2)
    raw[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "big")


def _batch_starts(raw: bytes | bytearray) -> list[int]:
    """The starts of the record batches, by their lengths."""
    found, at = [0], 0
    while at + HEADER <= len(raw):
        (length,) = struct.unpack_from(">i", raw, at + LENGTH_AT)
        if length < HEADER - UP_TO_LENGTH:
            break
        at += length + UP_TO_LENGTH
        found.append(at)
    return found


def repaired(raw: bytes) -> bytes:
    """``raw`` with correct checksums; the last record batch extends to the end of the bytes."""
    begins = _batch_starts(raw)
    whole = [(begin, end) for begin, end in itertools.pairwise(begins) if end <= len(raw)]
    last = whole[-1][1] if whole else 0
    found = b"".join(resealed(raw[begin:end]) for begin, end in whole)
    rest = bytearray(raw[last:])
    if len(rest) < HEADER:
        return found + bytes(rest)
    rest[LENGTH_AT : LENGTH_AT + 4] = (len(rest) - UP_TO_LENGTH).to_bytes(4, "big")
    return found + resealed(rest)


def odd_records(rng: random.Random) -> bytes:
    """A record batch whose records have correct lengths, and some impossible fields."""
    odd = rng.choice((0.0, 0.01, 0.05))
    count = rng.choice((1, 3, 20, 40))
    records = b"".join(_record(rng, number, odd) for number in range(count))
    header = bytearray(batch([Record(b"")] * count, 5)[:HEADER])
    header[LENGTH_AT : LENGTH_AT + 4] = (len(records) + HEADER - UP_TO_LENGTH).to_bytes(4, "big")
    return resealed(header + records)


def _record(rng: random.Random, number: int, odd: float) -> bytes:
    def varint(right: int) -> bytes:
        found = bytearray()
        encode_varint(rng.choice(NUMBERS) if rng.random() < odd else right, found.append)
        return bytes(found)

    def text(null: bool) -> bytes:
        size = rng.randrange(-1 if null else 0, 4)
        return varint(size) + b"t" * max(size, 0)

    headers = rng.choice((0, 0, 1, 3))
    fields = [b"\0", varint(number), varint(number), text(True), text(True), varint(headers)]
    body = b"".join(fields) + b"".join(text(False) + text(True) for _ in range(headers))
    return varint(len(body)) + body
