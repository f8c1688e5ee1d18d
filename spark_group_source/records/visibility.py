"""Which record batches give rows: no control batches, and under read_committed none of aborted transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from spark_group_source.records.frames import Frame

_ABORT = 0
_MARKER = struct.Struct(">hh")
_MARKER_AT = 5
"""Bytes before the key of a marker, the first record of a control batch: length, attributes, timestamp and offset
delta, key length, each one byte for such a record."""


def visible(batches: Iterable[Frame], aborted: Sequence[tuple[int, int]], read_committed: bool) -> Iterator[Frame]:
    """The batches that give rows, in order.

    Args:
        batches: consecutive batches of one partition, as one fetch brought them.
        aborted: (producer id, first offset) of the aborted transactions that overlap the fetch.
        read_committed: hide what aborted transactions wrote.
    """
    to_come = sorted(aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        while read_committed and to_come and to_come[-1][1] < batch.next_offset:
            aborting.add(to_come.pop()[0])
        if batch.control:
            # The marker ends the producer's transaction; what it writes next belongs to another one.
            if _is_abort(batch):
                aborting.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in aborting):
            yield batch


def _is_abort(control: Frame) -> bool:
    if len(control.payload) < _MARKER_AT + _MARKER.size:
        return False
    _, kind = _MARKER.unpack_from(control.payload, _MARKER_AT)
    return bool(kind == _ABORT)
