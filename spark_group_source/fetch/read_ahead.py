"""Records that a task received beyond the end of its range, kept for the next micro-batch of the query.

A broker sends whole record batches, and requesting a little more saves requests. The records are kept in a file for
each partition, because the next task may run in another Python worker of the executor. The files are in the directory
for temporary files that Spark gives to its workers, and removes when the executor ends. Nothing relies on the files: a
task that finds none fetches the records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import struct
import time
from pathlib import Path

from crc32c import crc32c

from spark_group_source.errors import RecordsError
from spark_group_source.offsets import MAX_OFFSET, UNKNOWN_EPOCH, OffsetRange
from spark_group_source.records.batches import RecordBatches, find_record_batches

log = logging.getLogger(__name__)

LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""The environment variable with Spark's directories for temporary files, which are private to the user."""
MAX_BUFFERED_BYTES = 32 * 2**20
"""Maximum size in bytes of the records that one task writes to files, and of the records that it reads from files."""
MIN_BYTES = 4096
"""Minimum size in bytes of buffered records. Fetching fewer bytes again costs less than a file."""
MAX_AGE = 600.0
"""How long the files of a query are kept after the last change, in seconds. By then, the query has probably ended."""

REMOVAL_INTERVAL = 60.0
"""Minimum seconds between two removals of such files by one worker."""

_PREFIX = "kafka-group-"
_CHECKSUM = struct.Struct(">I")
"""The CRC-32C of all bytes after it. The checksums of record batches cover neither their offsets nor their lengths."""
_HEADER = struct.Struct(">qi")
"""The offset from which the records are complete, and the epoch of the leader that sent them."""
_next_removal = [0.0]


def query_directory(query_id: str) -> Path | None:
    """The directory that the workers of one executor share for a run of a query. It may not exist yet.

    ``None`` without an id of the run, or if Spark gives no directory for temporary files.
    """
    local = os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]
    if not local or not query_id:
        return None
    return Path(local, _PREFIX + query_id)


class ReadAheadBuffer:
    """The buffered records of one run of a query on one executor, for one task.

    Args:
        query_id: identifies the run of the query. Without an id, nothing is kept.
    """

    def __init__(self, query_id: str) -> None:
        self._directory = query_directory(query_id)
        self._left = self._left_to_take = MAX_BUFFERED_BYTES
        if self._directory is not None:
            _remove_old(self._directory.parent)

    def take(self, wanted: OffsetRange) -> RecordBatches | None:
        """The kept record batches with the first records of the range; ``None`` without any.

        They need the leader epoch of the range: the leader has then only appended to the log since.
        """
        path = self._path(wanted)
        if path is None:
            return None
        try:
            size = path.stat().st_size - _CHECKSUM.size - _HEADER.size
            if self._left_to_take < size <= MAX_BUFFERED_BYTES:
                return None  # several tasks have kept the records of this task's ranges
            start, epoch, records = _read(path)
            batches = find_record_batches(wanted.tp, records)
            next_offset = batches.next_offset
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecordsError) as error:
            self.remove(wanted, str(error))
            return None
        is_behind = next_offset is None or next_offset <= wanted.start
        if is_behind or epoch != wanted.epoch:
            _unlink(path)
            return None
        self._left_to_take -= len(records)
        return _first_records(wanted, start, batches)

    def remove(self, read: OffsetRange, problem: str) -> None:
        """Removes the buffered records of a partition, because they cannot be used."""
        path = self._path(read)
        if path is not None and _unlink(path):
            log.warning(
                "fetch: cannot use the buffered records of %s, fetching these records again: %s", read.tp, problem
            )

    def keep(self, read: OffsetRange, leader_epoch: int, batches: RecordBatches) -> None:
        """Keeps the record batches with records after the range, if they hold a next range of the same size."""
        path = self._path(read)
        next_offset = batches.next_offset
        if path is None or leader_epoch == UNKNOWN_EPOCH:
            return
        if next_offset is None or next_offset - read.end < read.size:
            return
        rest = batches.between(read.end, next_offset)
        if not MIN_BYTES <= len(rest.records) <= self._left:
            return
        self._left -= len(rest.records)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with temporary.open("wb") as file:
                header = _HEADER.pack(read.end, leader_epoch)
                file.write(_CHECKSUM.pack(crc32c(rest.records, crc32c(header))))
                file.write(header)
                file.write(rest.records)
            temporary.replace(path)
        except OSError as error:
            log.info("fetch: cannot buffer records of %s for the next batch: %s", read.tp, error)
            _unlink(temporary)  # it takes up space on a disk that may be full

    def _path(self, offset_range: OffsetRange) -> Path | None:
        if self._directory is None or not offset_range.topic_id:
            return None
        return self._directory / f"{offset_range.topic_id}-{offset_range.partition}"


def _read(path: Path) -> tuple[int, int, memoryview]:
    """The first offset, the leader epoch and the record batches in a file.

    The file is read and not mapped: a read that fails is an error, while a mapping that fails kills the process.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is incomplete, from another version, or its bytes have changed.
    """
    with path.open("rb") as file:
        content = memoryview(file.read(_CHECKSUM.size + _HEADER.size + MAX_BUFFERED_BYTES + 1))
    if not _CHECKSUM.size + _HEADER.size <= len(content) <= _CHECKSUM.size + _HEADER.size + MAX_BUFFERED_BYTES:
        raise ValueError(f"the file has {len(content)} bytes")
    (expected,) = _CHECKSUM.unpack_from(content)
    if crc32c(content[_CHECKSUM.size :]) != expected:
        raise ValueError("the file is damaged: its CRC-32C does not match")
    start, epoch = _HEADER.unpack_from(content, _CHECKSUM.size)
    return start, epoch, content[_CHECKSUM.size + _HEADER.size :]


def _first_records(wanted: OffsetRange, start: int, batches: RecordBatches) -> RecordBatches | None:
    """The record batches with the first records of the range; ``None`` if they are missing or damaged."""
    if start > wanted.start:
        return None
    found = batches.between(wanted.start, wanted.end)
    # A gap may come from a damaged header: the broker's response shows which.
    if not len(found) or found.base_offset(0) > wanted.start:
        return None
    try:
        return found.reliable(wanted.start, wanted.end, MAX_OFFSET)
    except RecordsError:
        return None  # the broker's answer shows whether its log has them so


def _unlink(path: Path) -> bool:
    """Removes a file; returns whether that was possible."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _remove_old(local: Path) -> None:
    """Removes the files of queries that ended, once a minute."""
    now = time.time()
    if now < _next_removal[0]:
        return
    _next_removal[0] = now + REMOVAL_INTERVAL
    with contextlib.suppress(OSError):  # a disk that fails is no reason for a task to fail
        for directory in list(local.glob(f"{_PREFIX}*")):
            _remove_if_old(directory, now)


def _remove_if_old(directory: Path, now: float) -> None:
    with contextlib.suppress(OSError):  # another worker may remove it, too
        if now - directory.stat().st_mtime > MAX_AGE:
            shutil.rmtree(directory)
