"""The position of a query with ``format("kafka")``, from its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from spark_group_source.errors import CannotMove
from spark_group_source.listing import some
from spark_group_source.moving.checkpoint_files import CheckpointFiles
from spark_group_source.moving.last_batch import batch_numbers, check_complete, last_batch, nothing_read
from spark_group_source.moving.logged_sources import check_commit, choose, kafka_offsets, parse_log
from spark_group_source.options.offset_specs import Earliest, as_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

Parsed = TypeVar("Parsed")

PARTS = ("offsets", "commits", "sources", "state", "metadata")
SINKS = {"_spark_metadata": "a file sink", "_delta_log": "a Delta table"}
"""Directories by which the output of a query is recognised."""


def starting_offsets(spark: SparkSession, checkpoint: str, source: str | int | None, without_state: bool) -> str:
    """See :func:`spark_group_source.offsets_of_checkpoint`."""
    files = CheckpointFiles(spark, checkpoint)
    # The commits first: Spark logs a batch before it commits it. So the log of a query that still runs is not damaged.
    committed = batch_numbers(files.names("commits") or [])
    names = files.names("offsets")
    if names is None:
        raise _not_a_checkpoint(spark, checkpoint, files)
    last = last_batch(checkpoint, batch_numbers(names), committed)
    sources = _read(checkpoint, files, f"offsets/{last}", parse_log)
    offsets = kafka_offsets(checkpoint, choose(checkpoint, sources, source))
    if not without_state and files.has_directory("state"):
        raise CannotMove(
            f"The query of {checkpoint} has state (aggregation, deduplication, a join, or a function with state), and"
            " state cannot be moved. The new query would start with empty state.",
            "Choose in docs/moving.md, 'Queries with state', where to start. To start behind the last batch all the"
            " same, set without_state=True.",
        )
    check_complete(checkpoint, last, committed)
    _read(checkpoint, files, f"commits/{last}", check_commit)
    return as_json(offsets, Earliest())


def _read(checkpoint: str, files: CheckpointFiles, name: str, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(files.content(name))
    except ValueError as error:
        raise CannotMove(
            f"The file {name} of {checkpoint} is damaged: {error}.",
            "Do not take an earlier batch: the sink may have this one. Restore the file, or find the position by the"
            " records in the sink.",
        ) from None


def _not_a_checkpoint(spark: SparkSession, directory: str, files: CheckpointFiles) -> CannotMove:
    path = directory.rstrip("/").split("/")
    for above in ("/".join(path[:at]) for at in (-1, -2) if path[at:][0] in PARTS):
        if CheckpointFiles(spark, above).names("offsets") is not None:
            return CannotMove(f"{directory} is a part of the checkpoint {above}.", "Give the path of the checkpoint.")
    if files.has_file("metadata"):
        return nothing_read(directory)
    hints = [f"It contains the checkpoint {name}." for name in files.parents("offsets")]
    hints += [f"It is the output of a query: {kind}." for name, kind in SINKS.items() if files.has_directory(name)]
    return CannotMove(
        f"{directory} is not a checkpoint: Spark finds no directory 'offsets' in it. {some(hints, ' ')}".rstrip(),
        "Give the path in the option 'checkpointLocation' of the old query.",
    )
