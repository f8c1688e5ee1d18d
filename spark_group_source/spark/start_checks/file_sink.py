"""Queries whose checkpoint is behind the directory of their file sink: a new one, or a restored one.

Spark's file sink skips each batch whose number is not above those in the log of its directory, because it takes such a
batch for one that is repeated after a crash (FileStreamSink.addBatch). A new checkpoint counts from 0, and a restored
one from its own end, so the sink would drop the rows of their next batches, while the query commits their offsets.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from spark_group_source.spark.notifications.messages import Rejection

log = logging.getLogger(__name__)

LOG_DIRECTORY = "_spark_metadata"
"""The log in the directory of a file sink: a file for each batch, with the batch's number as its name, or such a file
with ``.compact`` for all batches so far."""

NO_BATCH = -1
"""The last batch of a new checkpoint, and of a directory without a log."""

_SINK = re.compile(r"FileSink\[(.+)\]", re.DOTALL)
_BATCH = re.compile(r"(\d+)(?:\.compact)?")


def skips_batches(query: Any, jvm: Any, name: str) -> Rejection | None:
    """Why the file sink of a query would drop rows, or ``None``.

    Args:
        query: Spark's query, an object of the JVM, before its first batch.
        jvm: py4j's view of the JVM.
        name: the name of the query for the error.
    """
    try:
        execution = query.streamingQuery()
        directory = _directory(execution)
        if directory is None:
            return None
        planned = _last_planned(execution)
        written = _last_written(directory, execution, jvm)
    except Exception as error:  # Spark's execution of a query is no public API; the file system may not respond
        log.debug("cannot check the output directory of query %s: %s", name, error)
        return None
    if written <= planned:
        return None
    state = "is new"
    if planned != NO_BATCH:
        state = f"ends with batch {planned}"
    return Rejection(
        f"The checkpoint of the query {name} {state}, but its output directory {directory} has batches up to number"
        f" {written}. Spark's file sink would drop the rows of this query's next batches, up to that number.",
        "Write to a new directory, or use the checkpoint with which this directory was written.",
    )


def _directory(execution: Any) -> str | None:
    """The directory of a query's file sink; ``None`` if its sink is of another kind."""
    match = _SINK.fullmatch(execution.sink().toString())
    if match is None:
        return None
    return match[1]


def _last_planned(execution: Any) -> int:
    """The number of the last batch in the checkpoint, which may be incomplete; :data:`NO_BATCH` if it is new."""
    latest = execution.offsetLog().getLatestBatchId()
    if latest.isEmpty():
        return NO_BATCH
    return int(latest.get())


def _last_written(directory: str, execution: Any, jvm: Any) -> int:
    """The number of the last batch in the log of this directory; :data:`NO_BATCH` without such a log."""
    path = jvm.org.apache.hadoop.fs.Path(directory, LOG_DIRECTORY)
    files = path.getFileSystem(execution.sparkSession().sessionState().newHadoopConf())
    if not files.exists(path):
        return NO_BATCH
    numbers = []
    for file in files.listStatus(path):
        match = _BATCH.fullmatch(file.getPath().getName())
        if match is not None:
            numbers.append(int(match[1]))
    return max(numbers, default=NO_BATCH)
