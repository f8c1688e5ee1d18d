"""Records that a task received beyond the end of its range, kept for the next micro-batch of the query.

A broker sends whole record batches, and asking for a little more saves requests. The records are kept in a file for
each partition, because the next task may run in another Python worker of the executor. The files lie in the directory
for temporary files that Spark gives to its workers, and that it removes when the executor ends. Nothing relies on
them: a task without them fetches.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import shutil
import struct
import time
from pathlib import Path

from spark_group_source.errors import RecordsError
from spark_group_source.offsets import UNKNOWN_EPOCH, OffsetRange
from spark_group_source.records.batches import RecordBatches, find_record_batches

log = logging.getLogger(__name__)

LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""The environment variable with Spark's directories for temporary files, which are private to the user."""
MAX_BYTES = 32 * 2**20
"""Maximum size in bytes of the records that one task keeps."""
MIN_BYTES = 4096
"""Minimum size in bytes of buffered records. To receive fewer again costs less than a file."""
MAX_AGE = 600.0
"""How long the files of a query are kept without a change, in seconds. Afterwards the query has probably ended."""

REMOVAL_INTERVAL = 60.0
"""How often a worker looks for such files, in seconds."""

MAX_INT64 = 2**63 - 1

_PREFIX = "kafka-group-"
_HEADER = struct.Struct(">qi")
"""The first offset that the records are complete from, and the leader epoch that they were read under."""
_next_removal = [0.0]


class ReadAheadBuffer:
    """The buffered records of one run of a query on one executor, for one task.

    Args:
        query_id: identifies the run of the query; without one nothing is kept.
    """

    def __init__(self, query_id: str) -> None:
        local = os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]
        self._directory = Path(local, _PREFIX + query_id) if local and query_id else None
        self._left = MAX_BYTES
        if self._directory is not None:
            _remove_old(self._directory.parent)

    def take(self, wanted: OffsetRange) -> RecordBatches | None:
        """The kept record batches with the first records of the range; None if there are none.

        The leader epoch must be that of the range: then the leader has only appended to the log since.
        """
        path = self._path(wanted)
        if path is None:
            return None
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                start, epoch = _HEADER.unpack_from(memory)
                with memoryview(memory)[_HEADER.size :] as records:
                    batches = find_record_batches(wanted.tp, records)
                    usable = epoch == wanted.epoch and (batches.next_offset or 0) > wanted.start
                    if usable and start <= wanted.start:
                        found = batches.copy_between(wanted.start, wanted.end)
                        # Behind a gap there may be a damaged header: the broker's answer shows it.
                        if found is None or found.base_offset(0) > wanted.start:
                            return None
                        return found.reliable(wanted.start, wanted.end, MAX_INT64)
            if not usable:
                path.unlink()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, struct.error, RecordsError) as error:
            log.info("fetch: cannot read the buffered records of %s: %s", wanted, error)
        return None

    def keep(self, read: OffsetRange, leader_epoch: int, batches: RecordBatches) -> None:
        """Keeps the record batches with records after the range, if they hold a next range of the same size."""
        path = self._path(read)
        next_offset = batches.next_offset
        if path is None or leader_epoch == UNKNOWN_EPOCH or next_offset is None or next_offset - read.end < read.size:
            return
        rest = batches.between(read.end, next_offset)
        if not MIN_BYTES <= len(rest.records) <= self._left:
            return
        self._left -= len(rest.records)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(_HEADER.pack(read.end, leader_epoch))
                file.write(rest.records)
            temporary.replace(path)
        except OSError as error:
            log.info("fetch: cannot keep records of %s: %s", read.tp, error)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)  # it takes up space on a disk that may be full

    def _path(self, offset_range: OffsetRange) -> Path | None:
        if self._directory is None or not offset_range.topic_id:
            return None
        return self._directory / f"{offset_range.topic_id}-{offset_range.partition}"


def _remove_old(local: Path) -> None:
    """Removes the files of queries that ended, once a minute."""
    now = time.time()
    if now < _next_removal[0]:
        return
    _next_removal[0] = now + REMOVAL_INTERVAL
    for directory in local.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another worker may remove it, too
            if now - directory.stat().st_mtime > MAX_AGE:
                shutil.rmtree(directory)
