"""The position of a query with ``format("kafka")``, from its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from spark_group_source.errors import CannotMigrate
from spark_group_source.migration.checkpoint_files import CheckpointFiles
from spark_group_source.migration.last_batch import check_complete, last_batch, nothing_read
from spark_group_source.migration.offset_log import LoggedSource, batch_numbers, check_commit, parse_log
from spark_group_source.offsets import TopicPartition
from spark_group_source.options.offset_specs import Earliest, as_json
from spark_group_source.text import some

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

Parsed = TypeVar("Parsed")

PARTS = ("offsets", "commits", "sources", "state", "metadata")

SINKS = {"_spark_metadata": "a file sink", "_delta_log": "a Delta table"}
"""Directories that only the output of a query has, and what the output is."""


def starting_offsets(spark: SparkSession, checkpoint: str, source: str | int | None, without_state: bool) -> str:
    """See :func:`spark_group_source.offsets_of_checkpoint`."""
    files = CheckpointFiles(spark, checkpoint)
    # The commits are read first, because Spark logs a batch before it commits the batch. Otherwise the log of a running
    # query would look damaged.
    completed = files.names("commits")
    committed: list[int] = []
    if completed is not None:
        committed = batch_numbers(completed)
    names = files.names("offsets")
    if names is None:
        raise _not_a_checkpoint(spark, checkpoint, files)
    last = last_batch(checkpoint, batch_numbers(names), committed)
    sources = _read(checkpoint, files, f"offsets/{last}", parse_log)
    offsets = kafka_offsets(checkpoint, choose(checkpoint, sources, source))
    if not without_state and files.has_directory("state"):
        raise CannotMigrate(
            f"The query of {checkpoint} has state (aggregation, deduplication, a join, or a function with state), and"
            " state cannot be moved. The new query would start with empty state.",
            "Choose in docs/migrating.md, 'Queries with state', where to start. To start behind the last batch all the"
            " same, set without_state=True.",
        )
    check_complete(checkpoint, last, committed)
    _read(checkpoint, files, f"commits/{last}", check_commit)
    return as_json(offsets, Earliest())


def _read(checkpoint: str, files: CheckpointFiles, name: str, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(files.content(name))
    except ValueError as error:
        raise CannotMigrate(
            f"The file {name} of {checkpoint} is damaged: {error}.",
            "Do not take an earlier batch: the sink may have this one. Restore the file, or find the position by the"
            " records in the sink.",
        ) from None


def _not_a_checkpoint(spark: SparkSession, directory: str, files: CheckpointFiles) -> CannotMigrate:
    path = directory.rstrip("/").split("/")
    for levels in (1, 2):
        part = path[-levels:][0]
        above = "/".join(path[:-levels])
        if part in PARTS and CheckpointFiles(spark, above).names("offsets") is not None:
            return CannotMigrate(
                f"{directory} is a part of the checkpoint {above}.", "Give the path of the checkpoint."
            )
    if files.has_file("metadata"):
        return nothing_read(directory)
    hints = [f"It contains the checkpoint {name}." for name in files.parents("offsets")]
    for name, kind in SINKS.items():
        if files.has_directory(name):
            hints.append(f"It is the output of a query: {kind}.")
    return CannotMigrate(
        f"{directory} is not a checkpoint: Spark finds no directory 'offsets' in it. {some(hints, ' ')}".rstrip(),
        "Give the path in the option 'checkpointLocation' of the old query.",
    )


def choose(checkpoint: str, sources: Sequence[LoggedSource], wanted: str | int | None) -> LoggedSource:
    """One of the sources, by its topics, its number or its name; the only one if ``wanted`` is ``None``.

    Topics are all or some topics of one source. A source with exactly these topics takes precedence.

    Raises:
        CannotMigrate: there is no such source, or more than one.
    """
    matching = _matching(sources, wanted)
    if len(matching) == 1:
        return matching[0]
    listed = some([str(logged) for logged in sources], "; ")
    if wanted is None:
        happened = f"The query of {checkpoint} has {len(sources)} sources: {listed}."
    elif not matching:
        happened = f"No sources of {checkpoint} are {wanted!r}; the query has {listed}."
    else:
        happened = f"{len(matching)} sources of {checkpoint} are {wanted!r}; the query has {listed}."
    raise CannotMigrate(
        happened,
        "Choose one with source=: its topics as in 'subscribe', or its number if others have the same topics."
        " Each source becomes one load() with its own 'kafka.group.id'.",
    )


def _matching(sources: Sequence[LoggedSource], wanted: str | int | None) -> list[LoggedSource]:
    if wanted is None:
        return list(sources)
    if isinstance(wanted, str):
        of_topics = _with_topics(sources, {topic.strip() for topic in wanted.split(",")})
        if of_topics:
            return of_topics
    return [logged for logged in sources if logged.name == str(wanted)]


def _with_topics(sources: Iterable[LoggedSource], topics: set[str]) -> list[LoggedSource]:
    """The sources with exactly these topics. Without such a source, the sources that also have other topics."""
    exactly, among_others = [], []
    for logged in sources:
        topics_read = _topics_read(logged)
        if topics == topics_read:
            exactly.append(logged)
        elif topics < topics_read:
            among_others.append(logged)
    return exactly if exactly else among_others


def _topics_read(source: LoggedSource) -> set[str]:
    """The topics that a source has read; none if the source does not read Kafka."""
    try:
        return source.topics
    except ValueError:
        return set()


def kafka_offsets(checkpoint: str, source: LoggedSource) -> dict[TopicPartition, int]:
    """The next offset of each partition of this source.

    Raises:
        CannotMigrate: the source has not read anything, or is not of ``format("kafka")``.
    """
    try:
        offsets = source.offsets
    except ValueError:
        raise _other_kind(checkpoint, source) from None
    if not offsets:
        raise CannotMigrate(
            f"Source {source.name} of {checkpoint} has not read anything yet, so it has no position.",
            "Set 'startingOffsets' of the new query to earliest, which skips nothing.",
        )
    return offsets


def _other_kind(checkpoint: str, source: LoggedSource) -> CannotMigrate:
    is_object = source.offset.startswith("{")
    if is_object and {"topics", "version"} <= json.loads(source.offset).keys():
        return CannotMigrate(
            f'The query of {checkpoint} reads with format("kafka-group") already.',
            "Nothing has to be moved: continue with this checkpoint.",
        )
    return CannotMigrate(
        f'Source {source.name} of {checkpoint} is not format("kafka"). Its offset is {source.offset[:80]}.',
        'Only queries that read with Spark\'s own format("kafka") can be moved.',
    )
