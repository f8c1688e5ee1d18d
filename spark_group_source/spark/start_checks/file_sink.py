"""Queries with a new checkpoint whose file sink has a directory with batches of another checkpoint.

Spark's file sink skips each batch whose number the log of its directory has, because it takes such a batch for one that
is repeated after a crash (FileStreamSink.addBatch). The batches of a new checkpoint count from 0, so it would drop
their rows, while the query commits their offsets.
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
        if directory is None or _has_batches(execution):
            return None
        last = _last_batch(directory, execution, jvm)
    except Exception as error:  # Spark's execution of a query is no public API; the file system may not respond
        log.debug("cannot check the output directory of query %s: %s", name, error)
        return None
    if last is None:
        return None
    return Rejection(
        f"The checkpoint of the query {name} is new, but its output directory {directory} has batches of another"
        f" checkpoint, up to number {last}. Spark's file sink would drop the rows of this query's batches with these"
        " numbers.",
        "Write to a new directory, or use the checkpoint of this directory.",
    )


def _directory(execution: Any) -> str | None:
    """The directory of a query's file sink; ``None`` if its sink is of another kind."""
    match = _SINK.fullmatch(execution.sink().toString())
    if match is None:
        return None
    return match[1]


def _has_batches(execution: Any) -> bool:
    """Whether the checkpoint has a batch."""
    return not execution.offsetLog().getLatestBatchId().isEmpty()


def _last_batch(directory: str, execution: Any, jvm: Any) -> int | None:
    """The number of the last batch in the log of this directory; ``None`` without such a log."""
    path = jvm.org.apache.hadoop.fs.Path(directory, LOG_DIRECTORY)
    files = path.getFileSystem(execution.sparkSession().sessionState().newHadoopConf())
    if not files.exists(path):
        return None
    numbers = []
    for file in files.listStatus(path):
        match = _BATCH.fullmatch(file.getPath().getName())
        if match is not None:
            numbers.append(int(match[1]))
    return max(numbers, default=None)
