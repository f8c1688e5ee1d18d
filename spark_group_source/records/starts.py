"""Where records begin: what cannot be looked up for all of them at once, as each length tells where the next one is.

The batches of a chunk are walked side by side instead, one record of each at a step, where there are enough of them;
otherwise one record after the other in a plain loop, which is the only work in Python per record.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_group_source.records.varints import Longs, varint

_LEAST_ABREAST = 30
"""Batches, on average over the steps, that make a step faster than so many turns of the loop."""
_MOST_EMPTY = 4
"""A step has room for all batches: how many times the room that is needed they may take, as some have more records."""

_MORE = 0x80
_FIRST, _SECOND = np.divmod(np.arange(2**16), 256)[::-1]
# Bytes from the first of a record to the next one, by its first two bytes, for lengths whose varint has no more than
# these: as the value of the first byte is even for lengths that can be, half of it is the length. Zero for others.
_STEPS = np.where(
    _FIRST < _MORE,
    1 + (_FIRST >> 1),
    np.where(_SECOND < _MORE, 2 + ((_FIRST & 0x7F) >> 1) + (_SECOND << 6), 0),
)
_STEPS_OF_FIRST: list[int] = np.where(_FIRST < _MORE, _STEPS, 2 + ((_FIRST & 0x7F) >> 1))[:256].tolist()


def record_starts(
    memory: bytes | bytearray, begins: Longs, ends: Longs, counts: Longs
) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Where each record of several batches begins, and of each batch whether its records fill it.

    Where they do not, the positions of its records mean nothing.

    Args:
        memory: holds the records of all batches, from ``begins`` to ``ends``.
        counts: records of each batch.
    """
    steps, total = int(counts.max(initial=0)), int(counts.sum())
    if total >= _LEAST_ABREAST * max(steps, 1) and steps * len(counts) <= _MOST_EMPTY * total:
        found = _abreast(memory, begins, ends, counts)
        if found is not None:
            return found, np.ones(len(counts), np.bool_)
    return _one_by_one(memory, begins, ends, counts)


def _abreast(memory: bytes | bytearray, begins: Longs, ends: Longs, counts: Longs) -> Longs | None:
    """None where a length takes more than two bytes, or a batch does not end where it should."""
    # Those with most records first, so that the ones that still have some stay together.
    order = np.argsort(-counts, kind="stable")
    many = counts[order]
    steps = np.arange(many[0])[:, np.newaxis]
    abreast = np.searchsorted(-many, -steps[:, 0], side="left").tolist()
    first_two = np.ndarray(len(memory) - 1, "<u2", memory, strides=(1,))
    found = np.empty((len(steps), len(many)), np.int64)
    behind = begins[order]
    try:
        for step, width in enumerate(abreast):
            at = behind[:width]
            found[step, :width] = at
            at += _STEPS[first_two[at]]
    except IndexError:
        return None
    if (behind != ends[order]).any():
        return None
    starts = np.empty(int(many.sum()), np.int64)
    firsts = np.concatenate(([0], np.cumsum(counts[:-1])))[order]
    there = steps < many
    starts[(firsts + steps)[there]] = found[there]
    return starts


def _one_by_one(
    memory: bytes | bytearray, begins: Longs, ends: Longs, counts: Longs
) -> tuple[Longs, npt.NDArray[np.bool_]]:
    starts = [0] * int(counts.sum())
    filled = np.empty(len(counts), np.bool_)
    first = 0
    for batch, (begin, end, count) in enumerate(zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True)):
        filled[batch] = _walk(memory, begin, range(first, first + count), starts) == end
        first += count
    return np.array(starts, np.int64), filled


def _walk(memory: bytes | bytearray, position: int, records: range, starts: list[int]) -> int:
    """Fills in the starts of one batch's records. The end of the last; -1 where a length leads out of memory."""
    steps = _STEPS_OF_FIRST
    try:
        for index in records:
            starts[index] = position
            first = memory[position]
            if first < 128:
                position += steps[first]
            elif (second := memory[position + 1]) < 128:
                position += steps[first] + (second << 6)
            else:
                length, body = varint(memory, position)
                position = body + max(length, 0)
                if position > len(memory):
                    return -1  # it may not even fit in 64 bits
    except IndexError:
        return -1
    return position
