"""Record batches to Arrow, without a Python object per record.

The batches of a whole fetch response are laid one behind the other in one run of bytes. A plain loop walks the record
lengths; everything else is decoded by numpy for all records at once; keys and values are cut out of the bytes by Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_group_source.errors import CorruptRecords, RecordsError
from spark_group_source.records.codecs import decompress
from spark_group_source.records.cut import cut_bytes, repeat_text
from spark_group_source.records.frames import Frame
from spark_group_source.records.headers import cut_headers
from spark_group_source.records.parse import Records, Run, Slice, parse
from spark_group_source.records.varints import Ints
from spark_group_source.records.visibility import visible

RUN_BYTES = 16 * 2**20
"""Bytes, decompressed, that are decoded at once: bounds memory where a response of some MB expands to hundreds."""

_SMALLEST_RECORD = 7
_LARGEST_MILLISECONDS = (2**63 - 1) // 1000


class Decoder:
    """Decodes fetch responses into record batches of one schema."""

    def __init__(self, schema: pa.Schema, *, read_committed: bool, check_crcs: bool = True) -> None:
        """``schema`` has any of the columns of :mod:`spark_group_source.records.columns`; others are not built."""
        self._schema = schema
        self._read_committed = read_committed
        self._check_crcs = check_crcs

    def decode(self, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """The rows of a response's partitions, in order of partitions as given, then of offsets.

        Raises:
            CorruptRecords: bytes are damaged.
            UnsupportedRecords: the codec is not known.
        """
        run = Run()
        for part in slices:
            for frame in visible(part.frames, part.aborted, self._read_committed):
                if frame.next_offset <= part.start or frame.base_offset >= part.end:
                    continue
                run.add(part, frame, self._payload(part, frame))
                if run.size >= RUN_BYTES:
                    yield from self._build(run)
                    run = Run()
        yield from self._build(run)

    def _payload(self, part: Slice, frame: Frame) -> bytes | memoryview:
        try:
            if self._check_crcs:
                frame.check_crc()
            payload = decompress(frame.codec, frame.payload)
            if frame.count * _SMALLEST_RECORD > len(payload):
                raise CorruptRecords(f"A record batch of {len(payload)} bytes claims {frame.count} records.")
        except RecordsError as error:
            where = f"{part.topic}-{part.partition} at offset {frame.base_offset}"
            raise type(error)(f"{where}: {error.happened}", error.action) from error
        return payload

    def _build(self, run: Run) -> Iterator[pa.RecordBatch]:
        if not run.batches:
            return
        try:
            records = _wanted(parse(run), run.slices)
            columns = [self._column(name, records, run.slices) for name in self._schema.names]
        except (ValueError, IndexError) as error:
            number, frame, *_ = run.batches[0]
            part = run.slices[number]
            raise CorruptRecords(
                f"Records from {part.topic}-{part.partition} offset {frame.base_offset} on are damaged: {error}.",
                "Look at the leader's log with kafka-dump-log.",
            ) from error
        if len(records.offset):
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, records: Records, slices: Sequence[Slice]) -> pa.Array:
        match name:
            case "key":
                return cut_bytes(records.data, records.key_at, records.key_size)
            case "value":
                return cut_bytes(records.data, records.value_at, records.value_size)
            case "topic":
                times = np.bincount(records.slice_number, minlength=len(slices))
                return repeat_text([each.topic for each in slices], times)
            case "partition":
                return pa.array(np.array([each.partition for each in slices], np.int32)[records.slice_number])
            case "offset":
                return pa.array(records.offset)
            case "timestamp":
                return pa.array(_microseconds(records.timestamp)).cast(self._schema.field(name).type)
            case "timestampType":
                return pa.array(records.log_append_time.astype(np.int32))
            case "headers":
                return cut_headers(records.data, records.headers_at, records.header_count, records.end)
        raise AssertionError(f"no such column: {name}")


def _wanted(records: Records, slices: Sequence[Slice]) -> Records:
    """Those in the ranges asked for: a fetch brings whole batches."""
    starts = np.array([each.start for each in slices], np.int64)[records.slice_number]
    ends = np.array([each.end for each in slices], np.int64)[records.slice_number]
    kept = (records.offset >= starts) & (records.offset < ends)
    return records if kept.all() else records.where(kept)


def _microseconds(milliseconds: Ints) -> Ints:
    if len(milliseconds) and np.abs(milliseconds).max() > _LARGEST_MILLISECONDS:
        raise ValueError(f"a timestamp of {np.abs(milliseconds).max()} ms is beyond what Spark can hold")
    scaled: Ints = milliseconds * 1000
    return scaled

