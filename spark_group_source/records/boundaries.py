"""Finds the start of each record. Each length gives the next start, so one lookup cannot find all of them.

Instead numpy advances many lanes together, one record of each lane per step. Each record batch is a lane. A large one
is split into several lanes: near each split point, a guess takes a position that looks like the start of a record. A
guess is right if and only if the lane before it ends there. Every wrong guess is detected, and its record batch is
then scanned as a single lane.

Also zigzag varints of 1 to 10 bytes: many at once, or a single one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spark_group_source.varints import decode_unsigned

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Memory = bytes | bytearray | memoryview

_CONTINUATION_BIT = 0x80
MAX_VARINT_SIZE = 10
"""Bytes of the longest varint, and so the maximum bytes that a scan may read after its limit."""
_SIZE_BITS, _SIZE_MASK = 2, 3


def _zigzag(raw: Longs) -> Longs:
    return (raw >> 1) ^ -(raw & 1)


_ONE_BYTE = _zigzag(np.arange(256))
"""The value of a varint of one byte."""
_BYTES = np.arange(2**16)
_TWO_BYTES = np.where(
    _BYTES & 0x80 == 0,
    _zigzag(_BYTES & 0x7F) << _SIZE_BITS | 1,
    np.where(_BYTES < 0x8000, _zigzag(_BYTES & 0x7F | (_BYTES & 0x7F00) >> 1) << _SIZE_BITS | 2, 0),
).astype(np.int32)
"""For the first two bytes of a varint: its value, and in the lowest bits its size; 0 for a longer varint."""


def decode_varints(memory: Bytes, starts: Longs) -> tuple[Longs, Longs]:
    """Decodes the varint at each position of ``starts``: the values, and the positions after them.

    A position outside of ``memory`` reads its first or last byte, and an eleventh byte is never read. Damaged positions
    give wrong values, not errors, so callers check the positions after the varints.
    """
    first = memory.take(starts, mode="clip")
    if not (first >= _CONTINUATION_BIT).any():
        return _ONE_BYTE.take(first), starts + 1
    # Most varints here have one or two bytes. Reading the second byte of all costs less than selecting some.
    second = memory.take(starts + 1, mode="clip").astype(np.uint16)
    second <<= 8
    second |= first
    entries = _TWO_BYTES.take(second)
    sizes = entries & _SIZE_MASK
    values = (entries >> _SIZE_BITS).astype(np.int64)
    after = starts + sizes
    longer = np.flatnonzero(sizes == 0)
    if longer.size:
        values[longer], after[longer] = _decode_longer(memory, starts[longer], second[longer])
    return values, after


def _decode_longer(memory: Bytes, starts: Longs, first_two: npt.NDArray[np.uint16]) -> tuple[Longs, Longs]:
    """Decodes varints of at least three bytes."""
    raw = (first_two & 0x7F | (first_two & 0x7F00) >> 1).astype(np.uint64)
    after, rows = starts + 2, np.arange(len(starts))
    for index in range(2, MAX_VARINT_SIZE):
        byte = memory.take(after[rows], mode="clip").astype(np.uint64)
        raw[rows] |= (byte & 0x7F) << np.uint64(7 * index)
        after[rows] += 1
        rows = rows[byte >= _CONTINUATION_BIT]
        if not rows.size:
            break
    return ((raw >> 1) ^ -(raw & 1)).view(np.int64), after


def decode_varint(memory: Sequence[int], start: int) -> tuple[int, int]:
    """Decodes the varint at ``start``: the value, and the position after it.

    Raises:
        IndexError: it extends beyond ``memory``, or beyond ten bytes.
    """
    raw, after = decode_unsigned(memory, start, MAX_VARINT_SIZE)
    return (raw >> 1) ^ -(raw & 1), after


MIN_RECORD_SIZE = 7
"""Bytes of the smallest record: a length, attributes, two deltas, two lengths and a count, of one byte each."""

# jobs/benchmark/decode.py has the measurements behind the values that follow.
_BLOCK_STEPS = 16
"""Steps between two checks for lanes that ended."""
_MAX_SEQUENTIAL_LANES = 32
"""Maximum number of lanes that a plain loop scans faster than numpy."""
_MIN_RECORDS_OF_BLOCK = 100
"""If a block finds fewer records, because each record of 8 kB stops a lane, the plain loop finds the others faster."""
_MIN_STOPPING_SIZE = 2**13
"""Minimum mean size in bytes of records that stop their lanes: their lengths have three bytes."""
_MIN_SPLIT_RECORDS = 2000
_MAX_SPLIT_RECORD_SIZE = 400
"""Minimum number of records, and maximum mean size in bytes, for which a split saves time."""
_LANES_PER_SQRT = 1.3
"""Lanes for each square root of records. More lanes need fewer steps, and more guesses."""

_MIN_LENGTH = MIN_RECORD_SIZE - 1
_MAX_LENGTH = 2**31
_FIRST, _SECOND = np.divmod(np.arange(2**16), 256)[::-1]
# Bytes from the start of a record to the next one, by its first two bytes: the value of a length's first byte is even,
# and half of it is the length. Zero for a length of more than two bytes, and for an impossible length.
_STEPS = np.where(
    _FIRST < _CONTINUATION_BIT,
    1 + (_FIRST >> 1),
    np.where(_SECOND < _CONTINUATION_BIT, 2 + ((_FIRST & 0x7F) >> 1) + (_SECOND << 6), 0),
)
_STEPS[(_FIRST & 1 == 1) | (MIN_RECORD_SIZE + (_FIRST >= _CONTINUATION_BIT) > _STEPS)] = 0
# For the plain loop, by the first byte: a list for two would not stay in the CPU's cache. The second byte adds to it.
_HALF = np.arange(256) >> 1
_STEPS_OF_FIRST: list[int] = np.where(
    _HALF < _CONTINUATION_BIT // 2, _STEPS[:256], 2 + _HALF - _CONTINUATION_BIT // 2
).tolist()
_STEPS_OF_FIRST[1::2] = [0] * 128


def find_record_starts(memory: Memory, starts: Longs, limits: Longs, expected: int) -> tuple[Longs, Longs]:
    """Finds all records that start between ``starts[i]`` and ``limits[i]`` of any record batch ``i``.

    Returns their starts in ascending order, and for each record batch the start of the record after the last one. That
    start is at the limit or after it, maybe after the end of ``memory``; it is -1 if a length is impossible.

    Args:
        memory: holds the records of all batches, in their order, and the whole length of each record.
        expected: the approximate number of records. It affects only the speed.
    """
    if _stop_at_each_record(starts, limits, expected):
        return _scan_one_by_one(memory, starts, limits)
    batch, lane_starts = _split_into_lanes(memory, starts, limits, expected)
    if len(lane_starts) == len(starts):
        return _scan_lanes(memory, starts, limits)
    last = np.concatenate((batch[1:] != batch[:-1], batch[:1] >= 0))
    lane_ends = np.where(last, limits[batch], np.roll(lane_starts, -1))
    record_starts, next_starts = _scan_lanes(memory, lane_starts, lane_ends)
    wrong = np.unique(batch[~last & (next_starts != lane_ends)])
    next_starts = next_starts[last]
    if wrong.size:
        batch_of_record = np.searchsorted(starts, record_starts, side="right") - 1
        rescanned, next_starts[wrong] = _scan_lanes(memory, starts[wrong], limits[wrong])
        record_starts = np.sort(np.concatenate((record_starts[~np.isin(batch_of_record, wrong)], rescanned)))
    return record_starts, next_starts


def _stop_at_each_record(starts: Longs, limits: Longs, expected: int) -> bool:
    """Whether lanes would stop at each record and have further records. The only record of a lane costs one step."""
    has_several = expected >= 2 * len(starts)
    return has_several and int((limits - starts).sum()) > expected * _MIN_STOPPING_SIZE


def _split_into_lanes(memory: Memory, starts: Longs, limits: Longs, expected: int) -> tuple[Longs, Longs]:
    """The record batch of each lane, and the start of the lane in it."""
    sizes = limits - starts
    total = int(sizes.sum())
    batches = np.arange(len(starts))
    if expected < _MIN_SPLIT_RECORDS or total > expected * _MAX_SPLIT_RECORD_SIZE:
        return batches, starts
    wanted = int(_LANES_PER_SQRT * expected**0.5)
    parts = np.maximum(sizes * wanted // total, 1)
    split = np.repeat(batches, parts - 1)
    if not split.size:
        return batches, starts
    nth = np.arange(len(split)) - np.repeat(np.cumsum(parts - 1) - (parts - 1), parts - 1) + 1
    size = (sizes // parts)[split]
    targets, width = starts[split] + nth * size, 3 * total // (2 * expected) + 64
    guesses, lane = _guess_starts(memory, targets, limits[split], width)
    # One large value may fill a window. Half a lane later it may have ended.
    missing = np.delete(np.arange(len(split)), lane)
    if missing.size:
        more, index = _guess_starts(memory, (targets + size // 2)[missing], limits[split[missing]], width)
        guesses, lane = np.concatenate((guesses, more)), np.concatenate((lane, missing[index]))
    lane_starts, first = np.unique(np.concatenate((starts, guesses)), return_index=True)
    return np.concatenate((batches, split[lane]))[first], lane_starts


def _guess_starts(memory: Memory, targets: Longs, limits: Longs, width: int) -> tuple[Longs, Longs]:
    """The first position in ``width`` bytes after each target that looks like the start of a record, and the index of
    that target. A target without such a position is left out.

    A record's attributes are a zero byte, and the last byte of its length, before them, is below 128 and not zero. It
    must lead to another record, whose offset is the next one.
    """
    raw = np.frombuffer(memory, np.uint8)
    width = min(width, len(raw))
    windows: npt.NDArray[np.void] = np.ndarray(len(raw) - width + 1, f"V{width}", memory, strides=(1,))
    window = windows[np.minimum(targets, len(windows) - 1)].view(np.uint8).reshape(len(targets), width)
    candidates = (window[:, 1:] == 0) & (window[:, :-1] - 1 < _CONTINUATION_BIT - 1)
    lane, position = np.divmod(np.flatnonzero(candidates), width - 1)
    position += np.minimum(targets, len(windows) - 1)[lane]
    second = raw.take(position - 1, mode="clip") >= _CONTINUATION_BIT
    third = second & (raw.take(position - 2, mode="clip") >= _CONTINUATION_BIT)
    position -= second
    position -= third
    good, attributes, next_start = _check_record(raw, position, limits[lane])
    good &= position >= targets[lane]
    lane, position, attributes, next_start = lane[good], position[good], attributes[good], next_start[good]
    good, next_attributes, _ = _check_record(raw, next_start, len(raw) * np.ones_like(position))
    good &= _offset_delta(raw, next_attributes) == _offset_delta(raw, attributes) + 1
    lane, position = lane[good], position[good]
    first = np.concatenate((lane[:1] >= 0, lane[1:] != lane[:-1]))
    return position[first], lane[first]


def _check_record(raw: Bytes, starts: Longs, limits: Longs) -> tuple[Longs, Longs, Longs]:
    """Whether a record can start here, and another one before the limit; the positions of its attributes and end."""
    length, attributes = decode_varints(raw, starts)
    good = (length >= _MIN_LENGTH) & (length < limits - attributes) & (raw.take(attributes, mode="clip") == 0)
    return good, attributes, attributes + length


def _offset_delta(raw: Bytes, attributes: Longs) -> Longs:
    """The offset delta of a record, by the position of its attributes. The timestamp delta lies between."""
    return decode_varints(raw, decode_varints(raw, attributes + 1)[1])[0]


def _scan_lanes(memory: Memory, starts: Longs, ends: Longs) -> tuple[Longs, Longs]:
    """The starts of the records of all lanes in ascending order, and the first start after each lane."""
    scanned, next_starts = [], np.full_like(starts, -1)
    lanes, position = np.arange(len(starts)), starts
    while lanes.size > _MAX_SEQUENTIAL_LANES:
        block = _scan_block(memory, position)
        if (block[-1] < ends[lanes]).all() and (block[-1] != block[-2]).all():
            scanned.append(block[:-1].ravel())
            position = block[-1]
            continue
        inside = block < ends[lanes]
        # A lane stops at a length of three or more bytes.
        scanned.append(block[:-1][inside[:-1] & (block[1:] != block[:-1])])
        found = len(scanned[-1])
        position = block[-1].copy()
        stopped = np.flatnonzero(inside[-1] & (position == block[-2]))
        if stopped.size:
            scanned.append(position[stopped])
            length, after = decode_varints(np.frombuffer(memory, np.uint8), position[stopped])
            position[stopped] = np.where((length < _MIN_LENGTH) | (length > _MAX_LENGTH), -1, after + length)
        reached = inside.sum(axis=0)
        next_starts[lanes] = np.where(
            reached > _BLOCK_STEPS, position, block[np.minimum(reached, _BLOCK_STEPS), np.arange(lanes.size)]
        )
        active = (position >= 0) & (position < ends[lanes])
        lanes, position = lanes[active], position[active]
        if found < _MIN_RECORDS_OF_BLOCK:
            break
    rest, next_starts[lanes] = _scan_one_by_one(memory, position, ends[lanes])
    record_starts = np.concatenate([*scanned, rest])
    record_starts.sort()
    return record_starts, next_starts


def _scan_one_by_one(memory: Memory, starts: Longs, ends: Longs) -> tuple[Longs, Longs]:
    """As :func:`_scan_lanes`, but in a plain loop: one lane after the other."""
    scanned: list[int] = []
    next_starts = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        found, next_start = _scan_sequentially(memory, start, end)
        scanned += found
        next_starts.append(next_start)
    return np.array(scanned, np.int64), np.array(next_starts, np.int64)


def _scan_block(memory: Memory, starts: Longs) -> Longs:
    """The positions of all lanes in the next steps. A lane beyond its end continues into the bytes that follow."""
    last = len(memory) - 2
    first_two: npt.NDArray[np.uint16] = np.ndarray(last + 1, "<u2", memory, strides=(1,))
    block = np.empty((_BLOCK_STEPS + 1, len(starts)), np.int64)
    block[0] = starts
    for step in range(_BLOCK_STEPS):
        position = block[step]
        try:
            length_bytes = first_two[position]
        except IndexError:
            length_bytes = first_two[np.minimum(position, last)]
        np.add(position, _STEPS.take(length_bytes), out=block[step + 1])
    return block


def _scan_sequentially(memory: Memory, position: int, end: int) -> tuple[list[int], int]:
    """The starts of the records of one lane, and the first start after it; -1 if a length is impossible."""
    starts: list[int] = []
    steps = _STEPS_OF_FIRST
    try:
        while position < end:
            starts.append(position)
            first = memory[position]
            if (step := steps[first]) and first < _CONTINUATION_BIT:
                position += step
            elif step and 0 < (second := memory[position + 1]) < _CONTINUATION_BIT:
                position += step + (second << 6)
            elif step and second and 0 < (third := memory[position + 2]) < _CONTINUATION_BIT:
                position += step + 1 + ((second & 0x7F) << 6) + (third << 13)
            else:
                length, position = decode_varint(memory, position)
                if not _MIN_LENGTH <= length <= _MAX_LENGTH:
                    return starts, -1
                position += length
    except IndexError:
        return starts, -1
    return starts, position
