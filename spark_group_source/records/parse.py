"""A run of records, parsed into one numpy array per property."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_group_source.records.frames import Frame
from spark_group_source.records.varints import LONGEST, Bytes, Ints, read_varints, walk


@dataclass(frozen=True, slots=True)
class Slice:
    """One partition's part of a fetch response, of which rows with ``start <= offset < end`` are wanted.

    ``aborted`` holds (producer id, first offset) of aborted transactions, as the response lists them.
    """

    topic: str
    partition: int
    start: int
    end: int
    frames: Sequence[Frame]
    aborted: Sequence[tuple[int, int]] = ()


@dataclass
class Run:
    """Batches that are parsed together. ``batches`` holds each one's slice number and where its records lie."""

    slices: list[Slice] = field(default_factory=list)
    batches: list[tuple[int, Frame, int, int]] = field(default_factory=list)
    parts: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0

    def add(self, part: Slice, frame: Frame, payload: bytes | memoryview) -> None:
        """Adds one batch of ``part``, decompressed."""
        if not self.slices or self.slices[-1] is not part:
            self.slices.append(part)
        self.batches.append((len(self.slices) - 1, frame, self.size, self.size + len(payload)))
        self.parts.append(payload)
        self.size += len(payload)


@dataclass(frozen=True, slots=True)
class Records:
    """Properties of n records, each of shape (n,). Positions are in ``data``; timestamps in milliseconds."""

    data: Bytes
    slice_number: Ints
    offset: Ints
    timestamp: Ints
    log_append_time: npt.NDArray[np.bool_]
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    headers_at: Ints
    header_count: Ints
    end: Ints

    def where(self, kept: npt.NDArray[np.bool_]) -> Records:
        """Those records for which ``kept`` is true."""
        return Records(self.data, *(getattr(self, name)[kept] for name in self.__slots__[1:]))


def parse(run: Run) -> Records:
    """All records of a run, in order.

    Raises:
        ValueError, IndexError: the bytes are damaged.
    """
    # Bytes to spare: a varint may be read where a damaged record ends.
    data = b"".join([*run.parts, bytes(LONGEST + 1)])
    raw = np.frombuffer(data, np.uint8)
    counts = np.array([frame.count for _, frame, _, _ in run.batches])
    begin, end = _bounds(data, run)
    _, at = read_varints(raw, begin)
    timestamp_delta, at = read_varints(raw, at + 1)
    offset_delta, at = read_varints(raw, at)
    key_size, key_at = read_varints(raw, at)
    value_size, value_at = read_varints(raw, _behind(key_at, key_size, end))
    header_count, headers_at = read_varints(raw, _behind(value_at, value_size, end))
    if (header_count < 0).any() or (headers_at > end).any() or ((headers_at < end) & (header_count == 0)).any():
        raise ValueError("a record's parts do not add up to its length")

    def of_batch(what: Callable[[Frame], Any]) -> npt.NDArray[Any]:
        return np.repeat(np.array([what(frame) for _, frame, _, _ in run.batches]), counts)

    appended = of_batch(lambda frame: frame.log_append_time)
    timestamp = of_batch(lambda frame: frame.first_timestamp) + timestamp_delta
    if appended.any():
        timestamp = np.where(appended, of_batch(lambda frame: frame.max_timestamp), timestamp)
    return Records(
        data=raw,
        slice_number=np.repeat(np.array([number for number, *_ in run.batches]), counts),
        offset=of_batch(lambda frame: frame.base_offset) + offset_delta,
        timestamp=timestamp,
        log_append_time=appended,
        key_at=key_at,
        key_size=key_size,
        value_at=value_at,
        value_size=value_size,
        headers_at=headers_at,
        header_count=header_count,
        end=end,
    )


def _bounds(data: bytes, run: Run) -> tuple[Ints, Ints]:
    """Where each record begins, with its length, and where it ends."""
    begins: list[int] = []
    lasts = []
    for _, frame, begin, end in run.batches:
        walk(data, begin, end, frame.count, begins)
        if frame.count:
            lasts.append((len(begins) - 1, end))
    begin_of = np.array(begins, np.int64)
    end_of = np.empty_like(begin_of)
    end_of[:-1] = begin_of[1:]
    # Batches need not lie one behind the other: the last record of each ends where its batch does.
    for index, end in lasts:
        end_of[index] = end
    return begin_of, end_of


def _behind(at: Ints, size: Ints, end: Ints) -> Ints:
    after: Ints = at + np.maximum(size, 0)
    if (size < -1).any() or (after > end).any():
        raise ValueError("a key or value is longer than its record")
    return after
