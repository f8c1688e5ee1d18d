"""The last batch of a query that has stopped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spark_group_source.errors import CannotMigrate

CONTIGUOUS = 3
"""The number of last batches that must be in the log without a gap. If Spark writes the log asynchronously, it leaves
batches out. Before a query may switch asynchronous writes off, Spark requires two batches that are logged in full."""


def last_batch(checkpoint: str, logged: Sequence[int], committed: Collection[int]) -> int:
    """The last batch in the log.

    Args:
        logged: the batches in the directory ``offsets``, sorted.
        committed: the batches in the directory ``commits``.

    Raises:
        CannotMigrate: there is no batch, or batches are missing.
    """
    if not logged:
        raise nothing_read(checkpoint)
    last = logged[-1]
    end = max(committed, default=-1)
    if end > last:
        raise CannotMigrate(
            f"{checkpoint} is damaged: its last completed batch is {end}, and the offsets end with batch {last}.",
            "Restore the missing files of the directory offsets.",
        )
    recent = logged[-CONTIGUOUS:]
    has_gap = last - recent[0] != len(recent) - 1
    lacks_the_first = len(logged) == 1 and last > 0
    if has_gap or lacks_the_first:
        raise CannotMigrate(
            f"The log of {checkpoint} has gaps: its last batches are {', '.join(map(str, recent))}. The query writes"
            " it asynchronously (asyncProgressTrackingEnabled), and its sink may have later batches than the log.",
            "Run the old query with asyncProgressTrackingCheckpointIntervalMs=0 until it has completed two more"
            " batches. Then run it without asyncProgressTrackingEnabled and with .trigger(availableNow=True), and try"
            " again.",
        )
    return last


def check_complete(checkpoint: str, last: int, committed: Collection[int]) -> None:
    """Checks that Spark has completed the last batch.

    Raises:
        CannotMigrate: Spark has not completed the last batch.
    """
    if last not in committed:
        raise CannotMigrate(
            f"Batch {last} of {checkpoint} is not complete: the old query still runs, or it was interrupted. Its sink"
            " may have the records of this batch already.",
            "Stop the old query. Run it once more with its checkpoint and .trigger(availableNow=True), until it ends."
            " Then try again. Do not take an earlier batch: the new query would write this one twice.",
        )


def nothing_read(checkpoint: str) -> CannotMigrate:
    """The error about a checkpoint without a batch."""
    return CannotMigrate(
        f"The query of {checkpoint} has not read anything: it has planned no batch.",
        "There is no position to move. Start the new query with the 'startingOffsets' of the old one.",
    )
