"""Chunks: records that lie in one piece of memory and are decoded together, of several batches or some of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from spark_group_source.records.frames import Slice
from spark_group_source.records.place import Place
from spark_group_source.records.starts import LEAST_RECORD, LONGEST_VARINT, record_starts
from spark_group_source.records.varints import Longs, Memory


@dataclass(frozen=True, slots=True)
class Source:
    """Some batches of a response: their headers, and which of the slices each is of."""

    headers: npt.NDArray[np.void]
    slices: Sequence[Slice]
    slice_of: npt.NDArray[np.intp]

    def place(self, batch: int) -> Place:
        """What to call batch ``batch`` in an error."""
        return Place(self.slices[self.slice_of[batch]].frames.tp, int(self.headers["base_offset"][batch]))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records. Each lies in ``memory`` from its element of ``starts`` to that of ``ends``; ``batch`` has its batch."""

    memory: Memory
    starts: Longs
    ends: Longs
    batch: Longs
    source: Source

    def rows(self, which: slice) -> Chunk:
        """Some of the records."""
        return Chunk(self.memory, self.starts[which], self.ends[which], self.batch[which], self.source)


class Body:
    """The bytes of a batch's records, which come in pieces."""

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def take(self, most: int) -> list[memoryview]:
        """The next ``most`` bytes, or all that are left."""
        found = []
        while most > 0:
            if not len(self._rest):
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = piece
            found.append(self._rest[:most])
            self._rest = self._rest[most:]
            most -= len(found[-1])
        return found

    def after(self, taken: Sequence[memoryview]) -> Body:
        """The body with the bytes in front again that were taken."""
        return Body(chain(taken, [self._rest], self._pieces))


def joined(pieces: Sequence[memoryview]) -> Memory:
    """The pieces in one memory. A single piece is not copied."""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def whole(memory: Memory, begins: Longs, ends: Longs, source: Source) -> Chunk:
    """A chunk of whole batches. Each lies between its begin and its end, and all lie in their order.

    Raises:
        CorruptRecords: a batch has not as many records as its header says, or other bytes behind them.
    """
    counts = source.headers["count"].astype(np.int64)
    sizes = ends - begins
    for bad in np.flatnonzero(counts > sizes // LEAST_RECORD)[:1].tolist():
        raise source.place(bad).corrupt(f"{counts[bad]} records cannot be in {sizes[bad]} bytes")
    starts, behind = record_starts(memory, begins, ends, int(counts.sum()))
    borders = np.append(np.searchsorted(starts, begins), len(starts))
    for bad in np.flatnonzero((behind != ends) | (np.diff(borders) != counts))[:1].tolist():
        raise source.place(bad).corrupt(f"its {counts[bad]} records do not fill its {sizes[bad]} bytes")
    record_ends = np.append(starts[1:], 0)
    record_ends[borders[1:] - 1] = ends
    return Chunk(memory, starts, record_ends, np.repeat(np.arange(len(counts)), counts), source)


def pieces(body: Body, size: int, source: Source) -> Iterator[Chunk]:
    """Chunks of one batch, each of about ``size`` bytes or of one larger record.

    Raises:
        CorruptRecords: the batch has not as many records as its header says, or other bytes behind them.
    """
    count, seen, mean = int(source.headers["count"][0]), 0, size
    least = max(size, LONGEST_VARINT + 1)
    carry, wanted, ended = memoryview(b""), least, False
    while not ended:
        memory = joined([*([carry] if carry else []), *body.take(wanted - len(carry))])
        ended = len(memory) < wanted
        # The length of a record that begins behind the limit may be cut.
        limit = len(memory) if ended else len(memory) - LONGEST_VARINT
        starts, found = record_starts(memory, np.array([0]), np.array([limit]), limit // mean)
        behind = int(found[0])
        ends = np.append(starts[1:], behind)
        wanted = least
        if behind > len(memory) and not ended:
            wanted = max(least, behind - int(starts[-1]) + LONGEST_VARINT)
            starts, ends, behind = starts[:-1], ends[:-1], int(starts[-1])
        seen += len(starts)
        if behind < 0 or seen > count or (ended and (behind, seen) != (len(memory), count)):
            raise source.place(0).corrupt(f"its {count} records do not fill its bytes")
        if len(starts):
            mean = behind // len(starts)
            yield Chunk(memory, starts, ends, np.zeros(len(starts), np.int64), source)
        carry = memoryview(memory)[behind:]
