"""The record batches of a whole Fetch response: which are needed, whether their bytes are sound, and their records.

Records are gathered in chunks: contiguous memory that holds those of many batches one behind the other, without headers
between, so that they are walked and decoded together whatever partition they are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from spark_group_source.records import frames
from spark_group_source.records.codecs import decompress
from spark_group_source.records.frames import CODEC, HEADER, Slice
from spark_group_source.records.place import Place
from spark_group_source.records.varints import Longs, varint
from spark_group_source.records.visibility import visible

_LEAST_RECORD = 7  # a length, attributes, two deltas, two lengths and a count, of one byte each


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step of decoding may hold.

    ``chunk`` is about the size in bytes of the records that are decoded together, and of the Arrow batches that come
    out; only a single larger batch makes the former larger, and a single larger record the latter. ``rows`` is the most
    in one Arrow batch, as the fixed-width columns of tiny records take more than their bytes. ``batch`` is the most
    bytes, below 2 GiB, that one compressed batch may come to.
    """

    chunk: int = 4 * 2**20
    rows: int = 2**17
    batch: int = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of several batches. Batch ``i`` lies in ``memory`` from ``begins[i]`` to ``begins[i + 1]``."""

    memory: bytes
    begins: Longs
    headers: npt.NDArray[np.void]
    slices: Sequence[Slice]
    slice_of: npt.NDArray[np.intp]

    def place(self, batch: int) -> Place:
        """What to call batch ``batch`` in an error."""
        return Place(self.slices[self.slice_of[batch]].frames.tp, int(self.headers["base_offset"][batch]))


class Batches:
    """All batches of a response, in the order of its slices."""

    def __init__(self, slices: Sequence[Slice], *, read_committed: bool, check_crcs: bool, limits: Limits) -> None:
        self._slices = slices
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._limits = limits
        framed = [each.frames for each in slices]
        self._headers = np.concatenate([np.empty(0, HEADER), *[each.headers() for each in framed]])
        self._slice_of = np.repeat(np.arange(len(slices)), [len(each) for each in framed])
        # Lists: where each batch holds one record, what is done per batch is as hot as what is done per record.
        self._spans = [
            (each.records, begin, end)
            for each in framed
            for begin, end in zip(each.positions[:-1], each.positions[1:], strict=True)
        ]
        self._codecs: list[int] = (self._headers["attributes"] & CODEC).tolist()

    def chunks(self) -> Iterator[Chunk]:
        """The records of the batches that give rows, checked and decompressed.

        Raises:
            CorruptRecords, UnsupportedRecords: a batch that is needed cannot be read.
        """
        picked: list[int] = []
        bodies: list[memoryview | bytes] = []
        sizes: list[int] = []
        total = 0
        needed = np.flatnonzero(self._needed()).tolist()
        self._verify(needed)
        for index in needed:
            body = self._body(index)
            size = len(body)
            if total + size > self._limits.chunk and picked:
                yield self._chunk(picked, bodies, sizes)
                picked, bodies, sizes, total = [], [], [], 0
            picked.append(index)
            bodies.append(body)
            sizes.append(size)
            total += size
        if picked:
            yield self._chunk(picked, bodies, sizes)

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

    def _verify(self, batches: Sequence[int]) -> None:
        """Compares the checksums of these batches."""
        if not self._check_crcs:
            return
        begin_at = frames.CRC_BEGIN
        found = [
            crc32c(records[begin + begin_at : end]) for records, begin, end in map(self._spans.__getitem__, batches)
        ]
        told = self._headers["crc"][batches]
        for wrong in np.flatnonzero(told != np.array(found, np.uint32))[:1].tolist():
            what = f"its CRC-32C is {found[wrong]:#010x} and not {told[wrong]:#010x}"
            raise self._place(batches[wrong]).corrupt(what)

    def _body(self, index: int) -> memoryview | bytes:
        """The records of a batch."""
        records, begin, end = self._spans[index]
        payload = records[begin + frames.SIZE : end]
        codec = self._codecs[index]
        return decompress(codec, payload, self._limits.batch, self._place(index)) if codec else payload

    def _chunk(self, picked: list[int], bodies: list[memoryview | bytes], sizes: list[int]) -> Chunk:
        headers = self._headers[picked]
        most = np.array(sizes) // _LEAST_RECORD
        for bad in np.flatnonzero(headers["count"] > most)[:1].tolist():
            raise self._place(picked[bad]).corrupt(f"{headers['count'][bad]} records cannot be in {sizes[bad]} bytes")
        begins = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        return Chunk(b"".join(bodies), begins, headers, self._slices, self._slice_of[picked])

    def _marker(self, index: int, first: int = 0) -> int | None:
        """The type in a control batch: 0 ABORT, 1 COMMIT. None in one that compaction has emptied.

        Batches are counted from ``first``, that of a slice.
        """
        index += first
        if not self._headers["count"][index]:
            return None
        self._verify([index])
        body = self._body(index)
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
