"""Where records begin. Each length tells where the next record is, so this cannot be looked up for all records at once.

Instead, many lanes are walked side by side, one record of each at a step. Each batch is a lane. A large batch is split
into several lanes: near each split, the walk guesses a position that looks like the begin of a record. A guess is right
if and only if the lane before it ends there, so a wrong guess is always found, and its batch is walked as one lane.
"""

from __future__ import annotations

import numpy as np

from spark_group_source.records.varints import Bytes, Longs, Memory, varint, varints

LEAST_RECORD = 7
"""Bytes of the smallest record: a length, attributes, two deltas, two lengths and a count, of one byte each."""
LONGEST_VARINT = 10
"""Bytes before a limit that a walk may read behind it."""

_BLOCK = 16
"""Steps between two looks at which lanes have ended."""
_FEW = 16
"""Lanes that are faster walked one after the other, in a plain loop."""
_LEAST_SPLIT = 2000
_MOST_SPLIT = 400
"""Records, and their mean size in bytes, from which and up to which finding a split pays."""
_LANES = 1.3
"""Lanes for each square root of records. More lanes need fewer steps, and more guesses."""

_MORE = 0x80
_LEAST_LENGTH = LEAST_RECORD - 1
_LARGEST = 2**31
_FIRST, _SECOND = np.divmod(np.arange(2**16), 256)[::-1]
# Bytes from the begin of a record to the next one, by its first two bytes: the value of a length's first byte is even,
# and half of it is the length. Zero for a length of more bytes, and for one that no record has.
_STEPS = np.where(
    _FIRST < _MORE,
    1 + (_FIRST >> 1),
    np.where(_SECOND < _MORE, 2 + ((_FIRST & 0x7F) >> 1) + (_SECOND << 6), 0),
)
_STEPS[(_FIRST & 1 == 1) | (LEAST_RECORD + (_FIRST >= _MORE) > _STEPS)] = 0
# For the plain loop, by the first byte alone, as a list of all would not stay in the cache. The second byte adds to it.
_HALF = np.arange(256) >> 1
_STEPS_OF_FIRST: list[int] = np.where(_HALF < _MORE // 2, _STEPS[:256], 2 + _HALF - _MORE // 2).tolist()
_STEPS_OF_FIRST[1::2] = [0] * 128


def record_starts(memory: Memory, begins: Longs, limits: Longs, expected: int) -> tuple[Longs, Longs]:
    """Where each record begins that begins between ``begins[i]`` and ``limits[i]`` of any batch ``i``, in their order.

    Also where the record behind those of each batch begins: at the limit or behind it; -1 if a length cannot be. It
    may be behind the end of ``memory``.

    Args:
        memory: holds the records of all batches, in their order, and the whole length of each.
        expected: about how many records there are. It matters for speed only.
    """
    batch, at = _lanes(memory, begins, limits, expected)
    if len(at) == len(begins):
        return _walked(memory, begins, limits)
    last = np.concatenate((batch[1:] != batch[:-1], batch[:1] >= 0))
    ends = np.where(last, limits[batch], np.roll(at, -1))
    starts, behind = _walked(memory, at, ends)
    wrong = np.unique(batch[~last & (behind != ends)])
    behind = behind[last]
    if wrong.size:
        of = np.searchsorted(begins, starts, side="right") - 1
        again, behind[wrong] = _walked(memory, begins[wrong], limits[wrong])
        starts = np.sort(np.concatenate((starts[~np.isin(of, wrong)], again)))
    return starts, behind


def _lanes(memory: Memory, begins: Longs, limits: Longs, expected: int) -> tuple[Longs, Longs]:
    """The batch of each lane, and where in it the lane begins."""
    sizes = limits - begins
    total = int(sizes.sum())
    whole = np.arange(len(begins))
    if expected < _LEAST_SPLIT or total > expected * _MOST_SPLIT:
        return whole, begins
    wanted = int(_LANES * expected**0.5)
    parts = np.maximum(sizes * wanted // total, 1)
    split = np.repeat(whole, parts - 1)
    if not split.size:
        return whole, begins
    nth = np.arange(len(split)) - np.repeat(np.cumsum(parts - 1) - (parts - 1), parts - 1) + 1
    size = (sizes // parts)[split]
    targets, width = begins[split] + nth * size, 2 * total // expected + 256
    found, lane = _guesses(memory, targets, limits[split], width)
    # Where all of a window lies in one large value, half a lane further may not.
    none = np.delete(np.arange(len(split)), lane)
    if none.size:
        more, of = _guesses(memory, (targets + size // 2)[none], limits[split[none]], width)
        found, lane = np.concatenate((found, more)), np.concatenate((lane, none[of]))
    at, first = np.unique(np.concatenate((begins, found)), return_index=True)
    return np.concatenate((whole, split[lane]))[first], at


def _guesses(memory: Memory, targets: Longs, limits: Longs, width: int) -> tuple[Longs, Longs]:
    """The first position in ``width`` bytes behind each target that looks like the begin of a record, and the index of
    that target. None for a target where nothing looks like it.

    A record's attributes are a zero byte, and the last byte of its length, before them, is below 128 and not zero. It
    must lead to another record, whose offset is the next one.
    """
    raw = np.frombuffer(memory, np.uint8)
    width = min(width, len(raw))
    windows = np.ndarray(len(raw) - width + 1, f"V{width}", memory, strides=(1,))
    seen = windows[np.minimum(targets, len(windows) - 1)].view(np.uint8).reshape(len(targets), width)
    like = (seen[:, 1:] == 0) & (seen[:, :-1] - 1 < _MORE - 1)
    lane, at = np.divmod(np.flatnonzero(like), width - 1)
    at += np.minimum(targets, len(windows) - 1)[lane]
    second = raw.take(at - 1, mode="clip") >= _MORE
    third = second & (raw.take(at - 2, mode="clip") >= _MORE)
    at -= second
    at -= third
    good, after, following = _record(raw, at, limits[lane])
    good &= at >= targets[lane]
    lane, at, after, following = lane[good], at[good], after[good], following[good]
    good, after_next, _ = _record(raw, following, len(raw) * np.ones_like(at))
    good &= _offset(raw, after_next) == _offset(raw, after) + 1
    lane, at = lane[good], at[good]
    first = np.concatenate((lane[:1] >= 0, lane[1:] != lane[:-1]))
    return at[first], lane[first]


def _record(raw: Bytes, at: Longs, limits: Longs) -> tuple[Longs, Longs, Longs]:
    """Whether there may be a record, and another one before the limit; where its length ends, and where it ends."""
    length, after = varints(raw, at)
    good = (length >= _LEAST_LENGTH) & (length < limits - after) & (raw.take(after, mode="clip") == 0)
    return good, after, after + length


def _offset(raw: Bytes, after: Longs) -> Longs:
    """The offset delta of a record, by where its length ends. Attributes and timestamp delta lie between."""
    return varints(raw, varints(raw, after + 1)[1])[0]


def _walked(memory: Memory, begins: Longs, ends: Longs) -> tuple[Longs, Longs]:
    """Where records begin in each lane, in the order of memory, and where the first one behind each lane begins."""
    found, behind = [], np.full_like(begins, -1)
    lanes, at = np.arange(len(begins)), begins
    while lanes.size > _FEW:
        block = _block(memory, at)
        if (block[-1] < ends[lanes]).all() and (block[-1] != block[-2]).all():
            found.append(block[:-1].ravel())
            at = block[-1]
            continue
        inside = block < ends[lanes]
        # A lane that met a length of three bytes or more stands still from there on.
        found.append(block[:-1][inside[:-1] & (block[1:] != block[:-1])])
        at = block[-1].copy()
        stuck = np.flatnonzero(inside[-1] & (at == block[-2]))
        if stuck.size:
            found.append(at[stuck])
            length, after = varints(np.frombuffer(memory, np.uint8), at[stuck])
            at[stuck] = np.where((length < _LEAST_LENGTH) | (length > _LARGEST), -1, after + length)
        reached = inside.sum(axis=0)
        behind[lanes] = np.where(reached > _BLOCK, at, block[np.minimum(reached, _BLOCK), np.arange(lanes.size)])
        going = (at >= 0) & (at < ends[lanes])
        lanes, at = lanes[going], at[going]
    for lane, position in zip(lanes.tolist(), at.tolist(), strict=True):
        rest, behind[lane] = _one_by_one(memory, position, int(ends[lane]))
        found.append(np.array(rest, np.int64))
    starts = np.concatenate([np.empty(0, np.int64), *found])
    starts.sort()
    return starts, behind


def _block(memory: Memory, at: Longs) -> Longs:
    """The positions of all lanes in the next steps. A lane that is behind its end goes on into what lies there."""
    last = len(memory) - 2
    first_two = np.ndarray(last + 1, "<u2", memory, strides=(1,))
    block = np.empty((_BLOCK + 1, len(at)), np.int64)
    block[0] = at
    for step in range(_BLOCK):
        here = block[step]
        try:
            seen = first_two[here]
        except IndexError:
            seen = first_two[np.minimum(here, last)]
        np.add(here, _STEPS.take(seen), out=block[step + 1])
    return block


def _one_by_one(memory: Memory, position: int, end: int) -> tuple[list[int], int]:
    """Where the records of one lane begin, and the first one behind it; -1 if a length cannot be."""
    starts: list[int] = []
    steps = _STEPS_OF_FIRST
    try:
        while position < end:
            starts.append(position)
            first = memory[position]
            if (step := steps[first]) and first < _MORE:
                position += step
            elif step and 0 < (second := memory[position + 1]) < _MORE:
                position += step + (second << 6)
            else:
                length, position = varint(memory, position)
                if not _LEAST_LENGTH <= length <= _LARGEST:
                    return starts, -1
                position += length
    except IndexError:
        return starts, -1
    return starts, position
