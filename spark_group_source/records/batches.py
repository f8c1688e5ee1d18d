"""The record batches of a whole Fetch response: which are needed, whether their bytes are sound, and their records.

Records are gathered in chunks of many batches that lie in one piece of memory, so that they are walked and decoded
together whatever partition they are of: in the response itself, or decompressed one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from spark_group_source.records.chunks import Body, Chunk, Source, joined, pieces, whole
from spark_group_source.records.codecs import decompress
from spark_group_source.records.frames import CODEC, CRC_BEGIN, HEADER, SIZE, Slice
from spark_group_source.records.place import Place
from spark_group_source.records.varints import Longs, varint
from spark_group_source.records.visibility import visible

_NONE = np.empty(0, np.int64)
_MARKER = 100
"""Bytes that are enough of a transaction marker."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much memory one step of decoding may take, whatever a producer sends.

    ``chunk``: maximum size in bytes of the records that are decoded together; a single larger record exceeds it.
    ``rows``: maximum number of records whose fields are held at once, and so of the rows of an Arrow batch: the fields
    of a small record take more memory than the record. ``headers``: maximum number of headers in one Arrow batch, for
    the same reason, and in one record. ``batch``: maximum size in bytes, below 2 GiB, that a compressed batch may come
    to; it bounds the size of a record, and the work.
    """

    chunk: int = 4 * 2**20
    rows: int = 2**17
    headers: int = 2**20
    batch: int = 512 * 2**20


class Batches:
    """All batches of a response, in the order of its slices."""

    def __init__(self, slices: Sequence[Slice], *, read_committed: bool, check_crcs: bool, limits: Limits) -> None:
        self._slices = slices
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._limits = limits
        framed = [each.frames for each in slices]
        self._memory, origins = _one_memory([each.records for each in framed])
        self._slice_of = np.repeat(np.arange(len(slices)), [len(each) for each in framed])
        positions = [np.array(each.positions, np.int64) + at for each, at in zip(framed, origins, strict=True)]
        self._begins = np.concatenate([_NONE, *[each[:-1] for each in positions]])
        self._ends = np.concatenate([_NONE, *[each[1:] for each in positions]])
        # A view of the headers that would begin at every byte: picking out of that is forty times faster than slices.
        anywhere = np.ndarray(max(len(self._memory) - SIZE + 1, 0), f"V{SIZE}", self._memory, strides=(1,))
        self._headers = anywhere[self._begins].view(HEADER)
        self._codecs = self._headers["attributes"] & CODEC

    def chunks(self) -> Iterator[Chunk]:
        """The records of the batches that give rows, checked and decompressed.

        Raises:
            CorruptRecords, UnsupportedRecords: a batch that is needed cannot be read.
        """
        needed = np.flatnonzero(self._needed())
        self._verify(needed)
        return self._decompressed(needed) if self._codecs[needed].any() else self._as_they_lie(needed)

    def _as_they_lie(self, needed: Longs) -> Iterator[Chunk]:
        """Nothing is copied but what a batch larger than a chunk has at the borders of its pieces."""
        begins, ends = self._begins[needed] + SIZE, self._ends[needed]
        behind = np.cumsum(ends - begins)
        first = 0
        while first < len(needed):
            most = self._limits.chunk + (behind[first - 1] if first else 0)
            last = int(np.searchsorted(behind, most, side="right"))
            if last == first:
                last += 1
                yield from pieces(self._body(int(needed[first])), self._limits.chunk, self._source(needed[first:last]))
            else:
                yield whole(self._memory, begins[first:last], ends[first:last], self._source(needed[first:last]))
            first = last

    def _decompressed(self, needed: Longs) -> Iterator[Chunk]:
        """As many batches at a time as come to a chunk, one behind the other. A larger batch comes in pieces."""
        picked: list[int] = []
        bodies: list[list[memoryview]] = []
        total, most = 0, self._limits.chunk
        for index in needed.tolist():
            body = self._body(index)
            begun = body.take(most + 1)
            size = sum(map(len, begun))
            if total + size > most and picked:
                yield self._joined(picked, bodies)
                picked, bodies, total = [], [], 0
            if size > most:
                yield from pieces(body.after(begun), most, self._source(np.array([index])))
                continue
            picked.append(index)
            bodies.append(begun)
            total += size
        if picked:
            yield self._joined(picked, bodies)

    def _joined(self, picked: list[int], bodies: list[list[memoryview]]) -> Chunk:
        ends = np.cumsum([sum(map(len, each)) for each in bodies], dtype=np.int64)
        memory = joined([piece for each in bodies for piece in each])
        return whole(memory, np.concatenate(([0], ends[:-1])), ends, self._source(np.array(picked)))

    def _needed(self) -> npt.NDArray[np.bool_]:
        """Which batches have records in the wanted range that may be seen."""
        base_offsets = self._headers["base_offset"].astype(np.int64)
        deltas = self._headers["last_offset_delta"]
        counts = self._headers["count"]
        for bad in np.flatnonzero((deltas < 0) | (counts < 0))[:1].tolist():
            raise self._place(bad).corrupt(f"it has {counts[bad]} records and a last offset delta of {deltas[bad]}")
        starts = np.array([each.start for each in self._slices], np.int64)[self._slice_of]
        ends = np.array([each.end for each in self._slices], np.int64)[self._slice_of]
        needed = self._visible()
        needed &= (base_offsets < ends) & (base_offsets + deltas >= starts) & (counts > 0)
        return needed

    def _visible(self) -> npt.NDArray[np.bool_]:
        found = visible(self._headers, (), self._marker)
        first = 0
        for each in self._slices:
            end = first + len(each.frames)
            if self._read_committed and each.aborted:
                marker = partial(self._marker, first=first)
                found[first:end] = visible(self._headers[first:end], each.aborted, marker)
            first = end
        return found

    def _verify(self, batches: Longs) -> None:
        """Compares the checksums of these batches."""
        if not self._check_crcs:
            return
        view = memoryview(self._memory)
        begins, ends = self._begins[batches] + CRC_BEGIN, self._ends[batches]
        found = [crc32c(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        told = self._headers["crc"][batches]
        for wrong in np.flatnonzero(told != np.array(found, np.uint32))[:1].tolist():
            what = f"its CRC-32C is {found[wrong]:#010x} and not {told[wrong]:#010x}"
            raise self._place(int(batches[wrong])).corrupt(what)

    def _body(self, index: int) -> Body:
        """The records of a batch."""
        payload = memoryview(self._memory)[self._begins[index] + SIZE : self._ends[index]]
        codec = int(self._codecs[index])
        if not codec:
            return Body([payload])
        return Body(decompress(codec, payload, self._limits.chunk, self._limits.batch, self._place(index)))

    def _source(self, picked: Longs) -> Source:
        return Source(self._headers[picked], self._slices, self._slice_of[picked])

    def _marker(self, index: int, first: int = 0) -> int | None:
        """The type in a control batch: 0 ABORT, 1 COMMIT. None in one that compaction has emptied.

        Batches are counted from ``first``, that of a slice.
        """
        index += first
        if not self._headers["count"][index]:
            return None
        self._verify(np.array([index]))
        body = joined(self._body(index).take(_MARKER))
        try:
            _, at = varint(body, 0)
            _, at = varint(body, at + 1)  # behind the attributes: the timestamp delta
            _, at = varint(body, at)  # the offset delta
            _, at = varint(body, at)  # the key's length; the key is a version and the type, of two bytes each
            return body[at + 2] << 8 | body[at + 3]
        except IndexError as error:
            raise self._place(index).corrupt("its transaction marker is cut") from error

    def _place(self, index: int) -> Place:
        return Place(self._slices[self._slice_of[index]].frames.tp, int(self._headers["base_offset"][index]))


def _one_memory(parts: Sequence[memoryview]) -> tuple[bytes | bytearray, list[int]]:
    """The memory that all parts lie in, one behind the other, and where each of them begins in it.

    They do if they are of one response; otherwise they are copied.
    """
    owner = parts[0].obj if parts else b""
    if isinstance(owner, (bytes, bytearray)) and all(each.obj is owner for each in parts):
        origin = _address(memoryview(owner))
        begins = [_address(each) - origin for each in parts]
        ends = [begin + len(each) for begin, each in zip(begins, parts, strict=True)]
        if all(end <= begin for end, begin in zip(ends, begins[1:], strict=False)):
            return owner, begins
    sizes = [len(each) for each in parts]
    return b"".join(parts), [0, *np.cumsum(sizes[:-1]).tolist()]


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
