"""Where records begin: what cannot be looked up for all of them at once, as each length tells where the next one is.

The batches of a chunk are walked side by side instead, one record of each at a step, where there are enough of them;
otherwise one record after the other in a plain loop, which is the only work in Python per record.
"""

from __future__ import annotations

import numpy as np

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


def record_starts(memory: bytes, begins: Longs, counts: Longs) -> Longs:
    """Where each record begins, and the end of the last, for batches that lie in ``memory`` one behind the other.

    Args:
        memory: the records of all batches.
        begins: where each batch begins, and the end of the last.
        counts: records of each batch.

    Where lengths lead out of ``memory`` or batches do not end where the next begins, positions are wrong: callers
    compare those at the borders of batches.
    """
    steps, total = int(counts.max(initial=0)), int(counts.sum())
    if total >= _LEAST_ABREAST * max(steps, 1) and steps * len(counts) <= _MOST_EMPTY * total:
        found = _abreast(memory, begins, counts)
        if found is not None:
            return found
    return np.array(_one_by_one(memory, total), np.int64)


def _abreast(memory: bytes, begins: Longs, counts: Longs) -> Longs | None:
    """None where a length takes more than two bytes, or a batch does not end where it should."""
    # Those with most records first, so that the ones that still have some stay together.
    order = np.argsort(-counts, kind="stable")
    many = counts[order]
    steps = np.arange(many[0])[:, np.newaxis]
    abreast = np.searchsorted(-many, -steps[:, 0], side="left").tolist()
    first_two = np.ndarray(len(memory) - 1, "<u2", memory, strides=(1,))
    found = np.empty((len(steps), len(many)), np.int64)
    at = begins[:-1][order]
    ends = at.copy()
    try:
        for step, width in enumerate(abreast):
            at = ends[:width]
            found[step, :width] = at
            ends[:width] = at + _STEPS[first_two[at]]
    except IndexError:
        return None
    if (ends != begins[1:][order]).any():
        return None
    starts = np.empty(int(many.sum()) + 1, np.int64)
    firsts = np.concatenate(([0], np.cumsum(counts[:-1])))[order]
    there = steps < many
    starts[(firsts + steps)[there]] = found[there]
    starts[-1] = begins[-1]
    return starts


def _one_by_one(memory: bytes, count: int) -> list[int]:
    """Where the lengths lead out of ``memory``, the rest are zeros."""
    starts = [0] * (count + 1)
    position = 0
    steps = _STEPS_OF_FIRST
    try:
        for index in range(1, count + 1):
            first = memory[position]
            if first < 128:
                position += steps[first]
            elif (second := memory[position + 1]) < 128:
                position += steps[first] + (second << 6)
            else:
                length, body = varint(memory, position)
                position = body + max(length, 0)
                if position > len(memory):
                    break  # it may not even fit in 64 bits
            starts[index] = position
    except IndexError:
        pass
    return starts
